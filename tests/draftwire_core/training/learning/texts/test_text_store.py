"""The store of texts: bounded, and whole after a process that was killed within any byte."""

import os
import resource
import shutil
import signal
import stat
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from draftwire_core.training.learning.texts.served_text import ServedText
from draftwire_core.training.learning.texts.text_store import TextStore
from draftwire_core.training.learning.texts.top_tokens import TopTokens


def text(number: int, length: int = 6) -> ServedText:
    return ServedText.of([number, 7], [number + step for step in range(length)], "own" if number % 3 else "traffic", 64)


class Stored:
    """A store in a directory, and what it warned of."""

    def __init__(self, directory: Path, target: str = "a", most_bytes: int = 1 << 20) -> None:
        self.told: list[str] = []
        self.store = TextStore(directory, target, most_bytes=most_bytes, warn=self.told.append)

    @property
    def contents(self) -> list[tuple[list[int], list[int], str]]:
        texts = [*self.store.newest(1 << 30, held_out=False), *self.store.newest(1 << 30, held_out=True)]
        found = sorted(texts, key=lambda each: each.prompt.tolist())
        return [(each.prompt.tolist(), each.output.tolist(), each.origin) for each in found]


def test_texts_are_there_after_a_restart(tmp_path: Path) -> None:
    first = Stored(tmp_path)
    assert all(first.store.add(text(number)) for number in range(40))
    again = Stored(tmp_path)
    assert again.contents == first.contents
    assert len(again.store) == 40
    assert again.store.tokens == first.store.tokens == 240
    assert not again.told


def with_top(number: int, length: int = 6) -> ServedText:
    top = TopTokens(
        np.arange(length * 3, dtype=np.int32).reshape(length, 3), np.full((length, 3), -number / 3, np.float16)
    )
    return ServedText.of([number, 7], list(range(number, number + length)), "traffic", 64, top)


def test_likeliest_tokens_are_there_after_a_restart_next_to_texts_without(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    sizes = []
    for each in (text(1), with_top(2), text(3), with_top(4)):
        stored.store.add(each)
        sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*.texts")))
    assert sizes[1] - sizes[0] - sizes[0] == 6 * 3 * 6, "six bytes for each token"
    again = {int(each.prompt[0]): each.top for each in Stored(tmp_path).store.texts()}
    assert [again[number].token_ids.shape for number in (1, 2, 3, 4)] == [(6, 0), (6, 3), (6, 0), (6, 3)]
    for number in (2, 4):
        expected = with_top(number).top
        assert np.array_equal(again[number].token_ids, expected.token_ids)
        assert np.array_equal(again[number].log_probs, expected.log_probs)


def test_a_record_of_before_likeliest_tokens_is_read(tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.store.add(text(1))
    (file,) = tmp_path.glob("*.texts")
    tokens = np.array([1, 7, *range(1, 7)], "<i4").tobytes()
    assert file.read_bytes() == struct.pack("<4sIIII", b"dwt1", 1, 2, 6, zlib.crc32(tokens)) + tokens


def test_likeliest_tokens_count_for_the_bound(tmp_path: Path) -> None:
    stored = Stored(tmp_path, most_bytes=4096)
    for number in range(200):
        stored.store.add(with_top(number))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.texts")) <= 4096
    assert 15 < len(stored.store) < 40


def test_equal_texts_are_stored_once_also_after_a_restart(tmp_path: Path) -> None:
    assert [Stored(tmp_path).store.add(text(1)) for _ in range(2)] == [True, False]
    assert not Stored(tmp_path).store.add(ServedText.of([1], [], "own", 64))


def test_nobody_else_may_read_them(tmp_path: Path) -> None:
    Stored(tmp_path / "texts").store.add(text(1))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "texts").glob("*.texts")}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "texts").stat().st_mode) == 0o700


def test_the_oldest_are_dropped(tmp_path: Path) -> None:
    stored = Stored(tmp_path, most_bytes=4096)
    for number in range(500):
        stored.store.add(text(number))
    assert sum(path.stat().st_size for path in tmp_path.glob("*.texts")) <= 4096
    assert len(stored.store) > 40
    assert stored.contents[-1][0] == [499, 7]
    again = Stored(tmp_path, most_bytes=4096)
    assert again.contents == stored.contents
    assert again.store.tokens == 3000, "dropped ones count"
    assert stored.store.add(text(0)), "it is not there any more"
    assert Stored(tmp_path, most_bytes=1024).contents[-1][0] == [499, 7], "a smaller bound holds at once"
    assert sum(path.stat().st_size for path in tmp_path.glob("*.texts")) <= 1024


def test_another_target_begins_anew(tmp_path: Path) -> None:
    Stored(tmp_path).store.add(text(1))
    other = Stored(tmp_path, "b")
    assert not other.contents
    assert other.store.tokens == 0
    other.store.add(text(2))
    assert len(Stored(tmp_path, "b").store) == 1
    (tmp_path / "texts.json").write_text("{")
    assert not Stored(tmp_path, "b").contents, "whose they are is not known"


def test_the_newest_come_first_up_to_a_number_of_tokens(tmp_path: Path) -> None:
    store = Stored(tmp_path).store
    learned = [number for number in range(60) if not text(number).held_out]
    for number in range(60):
        store.add(text(number))
    assert [int(each.prompt[0]) for each in store.newest(18, held_out=False)] == learned[:-4:-1]
    assert len(store.newest(1, held_out=False)) == 1
    assert all(each.held_out for each in store.newest(100, held_out=True))


def test_a_kill_at_any_byte_loses_the_last_text_only(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    stored = Stored(whole)
    sizes = [0]
    for number in range(2):
        stored.store.add(with_top(number, 2) if number else text(number, 2))
        (file,) = whole.glob("*.texts")
        sizes.append(file.stat().st_size)
    content = file.read_bytes()
    for end in range(len(content) + 1):
        place = shutil.copytree(whole, tmp_path / "cut", dirs_exist_ok=True)
        (place / file.name).write_bytes(content[:end])
        cut = Stored(place)
        left = sum(size <= end for size in sizes[1:])
        assert len(cut.store) == left
        cut.store.add(text(9))
        assert len(Stored(place).store) == left + 1, "what follows is not lost"


@pytest.mark.parametrize("byte", [0, 5, 21, 30])
def test_a_damaged_text_ends_its_file(byte: int, tmp_path: Path) -> None:
    stored = Stored(tmp_path)
    stored.store.add(text(1))
    stored.store.add(text(2))
    (file,) = tmp_path.glob("*.texts")
    content = bytearray(file.read_bytes())
    content[byte] ^= 0xFF
    file.write_bytes(content)
    assert not Stored(tmp_path).contents


class TestFullDisk:
    @pytest.fixture
    def full(self, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        """Files cannot grow beyond 100 bytes, as on a full disk: a record is written in part."""
        before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        yield monkeypatch
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

    def test_texts_stay_in_memory_and_it_is_told_once(self, full: pytest.MonkeyPatch, tmp_path: Path) -> None:
        stored = Stored(tmp_path)
        for number in range(20):
            assert stored.store.add(text(number))
        assert len(stored.store) == 20
        assert len(stored.told) == 1
        assert "File too large" in stored.told[0]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        stored.store.add(text(20))
        assert [each[0][0] for each in Stored(tmp_path).contents] == sorted([0, 20])


def test_a_place_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    stored = Stored(tmp_path / "file" / "texts")
    stored.store.add(text(1))
    assert len(stored.store) == 1
    assert len(stored.told) == 1
    assert os.strerror(20) in stored.told[0]
    assert np.array_equal(stored.store.newest(9, held_out=text(1).held_out)[0].output, text(1).output)
