"""Spellings that are kept in files."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from draftwire_core.engine.drafters.translation import spelling_cache
from draftwire_core.engine.drafters.translation.spelling_cache import SpellingCache, cache_directory
from draftwire_core.engine.drafters.translation.token_map import Spelled
from draftwire_core.engine.text.vocabulary import Vocabulary
from tests.harness.models.byte_tokenizers import backend


def vocabulary(kind: str, sha256: str | None = None) -> Vocabulary:
    return Vocabulary(backend(kind), {}, sha256=sha256 or kind)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the target vocabularies whose tokens have been spelled."""
    sizes: list[int] = []
    spell = Spelled.of

    def counting(target: Vocabulary, draft: Vocabulary) -> Spelled:
        sizes.append(len(target))
        return spell(target, draft)

    monkeypatch.setattr(Spelled, "of", counting)
    return sizes


def lists(spelled: Spelled) -> list[list[tuple[int, ...]]]:
    return [list(each) for each in spelled]


def test_a_second_start_makes_none(tmp_path: Path, made: list[int]) -> None:
    directory = tmp_path / "new" / "spellings"
    first = SpellingCache(directory, fewest_tokens=0).spelled(vocabulary("target"), vocabulary("draft"))
    again = SpellingCache(directory, fewest_tokens=0).spelled(vocabulary("target"), vocabulary("draft"))
    assert lists(first) == lists(again)
    assert len(made) == 1
    assert [each.suffix for each in directory.iterdir()] == [".npz"]


def test_other_tokenizers_have_other_files(tmp_path: Path, made: list[int]) -> None:
    cache = SpellingCache(tmp_path, fewest_tokens=0)
    for target, draft in (("a", "b"), ("b", "a"), ("a", "c"), ("a", "b")):
        cache.spelled(vocabulary("target", target), vocabulary("draft", draft))
    assert len(made) == 3 == len(list(tmp_path.iterdir()))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-30]),
    "other bytes": lambda file: file.write_bytes(file.read_bytes()[:300] + b"\7" * 50 + file.read_bytes()[350:]),
    "other arrays": lambda file: np.savez(file, target_tokens=np.zeros(3, np.int32)),
    "other sizes": lambda file: np.savez(
        file, **{f"{of}_{what}": np.zeros(3, np.int32) for of in ("target", "draft") for what in ("tokens", "counts")}
    ),
    "objects": lambda file: np.savez(file, target_tokens=np.array([{}], dtype=object), target_counts=np.zeros(1)),
    "a directory": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, made: list[int], damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = SpellingCache(tmp_path, fewest_tokens=0)
    first = cache.spelled(vocabulary("target"), vocabulary("draft"))
    (file,) = tmp_path.iterdir()
    DAMAGES[damage](file)
    assert lists(cache.spelled(vocabulary("target"), vocabulary("draft"))) == lists(first)
    damaged = [vars(each) for each in caplog.records if each.message == "token map file damaged"]
    assert [each["file"] for each in damaged] == [str(file)] and damaged[0]["reason"]
    assert len(made) == 2
    if damage != "a directory":
        cache.spelled(vocabulary("target"), vocabulary("draft"))
        assert len(made) == 2


def test_few_files_are_kept_the_last_used(tmp_path: Path, made: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelling_cache, "MOST_FILES", 2)
    cache = SpellingCache(tmp_path, fewest_tokens=0)

    def spell(name: str, used: float) -> None:
        cache.spelled(vocabulary("target", name), vocabulary("draft"))
        for file in tmp_path.iterdir():
            if file.stat().st_mtime > 1e6:
                os.utime(file, (used, used))

    abandoned = tmp_path / "x.part"
    abandoned.touch()
    for place, name in enumerate(("a", "b", "a", "c")):
        spell(name, 1000.0 + place)
    assert len(made) == 3
    spell("a", 1010.0)
    assert len(made) == 3
    spell("b", 1011.0)
    assert len(made) == 4 and not abandoned.exists()
    assert len(list(tmp_path.iterdir())) == 2


def test_without_a_place_to_write_nothing_is_kept(tmp_path: Path, made: list[int]) -> None:
    taken = tmp_path / "file"
    taken.touch()
    unknown = tmp_path / ("x" * 300)  # as in a home that belongs to somebody else, it cannot be seen what is there
    for directory in (taken / "spellings", unknown, None):
        SpellingCache(directory, fewest_tokens=0).spelled(vocabulary("target"), vocabulary("draft"))
    assert len(made) == 3 and taken.is_file()


def test_small_vocabularies_need_no_file(tmp_path: Path) -> None:
    SpellingCache(tmp_path).spelled(vocabulary("target"), vocabulary("draft"))
    assert not list(tmp_path.iterdir())


def test_the_files_are_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "draftwire" / "spellings"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory() == tmp_path / ".cache" / "draftwire" / "spellings"
