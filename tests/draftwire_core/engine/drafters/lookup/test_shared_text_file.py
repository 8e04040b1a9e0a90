"""The file of texts that lookup begins with: bounded, of one target, and whole or refused."""

import os
import stat
from pathlib import Path

import pytest

from draftwire_core.engine.drafters.lookup.shared_text_file import (
    SharedTextFileError,
    read_shared_texts,
    write_shared_texts,
)

TEXTS = [[5, 6, 7], [1], [(1 << 31) - 1, 0]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_shared_texts(tmp_path / "a.ids", TEXTS, "target")
    return tmp_path / "a.ids"


def test_texts_are_read_as_they_were_written(path: Path) -> None:
    assert read_shared_texts(path, "target", 100) == TEXTS
    write_shared_texts(path, ([token] for token in range(3)), "other")
    assert read_shared_texts(path, "other", 100) == [[0], [1], [2]]
    write_shared_texts(path, [], "target")
    assert read_shared_texts(path, "target", 100) == []


def test_nobody_else_may_read_them(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["a.ids"]


@pytest.mark.parametrize(
    ("most", "found"),
    [(6, TEXTS), (5, [[5, 6, 7], [1], [(1 << 31) - 1]]), (4, TEXTS[:2]), (3, TEXTS[:1]), (2, [[5, 6]])],
)
def test_only_so_many_tokens_are_read(path: Path, most: int, found: list[list[int]]) -> None:
    assert read_shared_texts(path, "target", most) == found


def test_the_size_of_the_file_does_not_matter(path: Path) -> None:
    write_shared_texts(path, [range(1000), range(1000)], "target")
    assert read_shared_texts(path, "target", 100) == [list(range(100))]


def test_no_file_is_no_text(tmp_path: Path) -> None:
    assert read_shared_texts(tmp_path / "none" / "a.ids", "target", 100) == []


def test_another_target_is_refused(path: Path) -> None:
    with pytest.raises(SharedTextFileError, match="texts of a target with another fingerprint"):
        read_shared_texts(path, "other", 100)


def test_every_cut_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(SharedTextFileError, match=r"is damaged|is not a file of texts"):
            read_shared_texts(path, "target", 100)
    path.write_bytes(whole + b"\0")
    with pytest.raises(SharedTextFileError, match="is damaged: 37 bytes of token ids found, 36 expected; delete it"):
        read_shared_texts(path, "target", 1)


@pytest.mark.parametrize(
    "line",
    [
        b"\xff",
        b"[1]",
        b"[" * 4000,
        b'{"format": "draftwire texts 2", "target": "target", "ids": 0}',
        b'{"format": "draftwire texts 1", "target": "target", "ids": Infinity}',
        b'{"format": "draftwire texts 1", "target": "target", "ids": -1}',
    ],
)
def test_another_file_is_refused(path: Path, line: bytes) -> None:
    path.write_bytes(line + b"\n")
    with pytest.raises(SharedTextFileError, match=str(path)):
        read_shared_texts(path, "target", 100)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for each in ("pipe", "."):
        with pytest.raises(SharedTextFileError, match="is not a file"):
            read_shared_texts(tmp_path / each, "target", 100)
