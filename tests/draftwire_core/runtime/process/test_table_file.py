"""Files of tables: read in order, and refused with the place of a mistake and none of a secret."""

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from draftwire_core.runtime.process.table_file import read_tables


class Cat(BaseModel):
    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    lives: int


def read(path: Path, *, secret: bool = False) -> dict[str, Cat]:
    return read_tables(path, Cat, "cat", empty=": nobody purrs", secret=secret)


def test_tables_come_in_the_files_order(tmp_path: Path) -> None:
    file = tmp_path / "cats.toml"
    file.write_text("[tom]\nlives = 9\n[ann]\nlives = 7\n")
    assert list(read(file).items()) == [("tom", Cat(lives=9)), ("ann", Cat(lives=7))]


def test_a_file_may_begin_with_the_mark_of_windows_editors(tmp_path: Path) -> None:
    file = tmp_path / "cats.toml"
    file.write_text("[tom]\nlives = 9\n", encoding="utf-8-sig")
    assert read(file, secret=True) == {"tom": Cat(lives=9)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no cat: nobody purrs"),
        ("tom = 9", r"tom: expected a table, \[NAME\], for each cat"),
        ("[tom]", "tom.lives: field required"),
        ("[tom]\nlives = 9\ntail = true", "tom.tail: extra inputs are not permitted"),
        ("[tom", "is not valid TOML"),
    ],
)
def test_a_mistake_is_placed(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cats.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=message) as raised:
        read(file)
    assert str(file) in str(raised.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read .*: No such file"):
        read(tmp_path / "none.toml")


@pytest.mark.parametrize("text", ["token = the-secret", '[tom]\nlives = "the-secret"'])
def test_nothing_of_a_secret_is_shown(tmp_path: Path, text: str) -> None:
    file = tmp_path / "cats.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"cats\.toml") as raised:
        read(file, secret=True)
    assert "the-secret" not in str(raised.value)
