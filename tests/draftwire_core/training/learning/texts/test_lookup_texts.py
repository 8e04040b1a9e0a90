"""The texts that lookup begins with after a restart."""

from pathlib import Path

import pytest

from draftwire_core.engine.drafters.lookup.shared_text_file import read_shared_texts
from draftwire_core.training.learning.texts import lookup_texts
from draftwire_core.training.learning.texts.lookup_texts import write_lookup_texts
from draftwire_core.training.learning.texts.served_text import ServedText
from draftwire_core.training.learning.texts.text_store import TextStore
from draftwire_tools.serve.learner_process import LOOKUP_TEXTS


@pytest.fixture
def store(tmp_path: Path) -> TextStore:
    return TextStore(tmp_path / "texts", "a", most_bytes=1 << 20, warn=pytest.fail)


def written(place: Path, store: TextStore) -> list[list[int]]:
    write_lookup_texts(place, store, "a")
    return read_shared_texts(place / LOOKUP_TEXTS, "a", 1 << 20)


def test_the_newest_come_first_and_clients_before_own_text(store: TextStore, tmp_path: Path) -> None:
    for number in range(40):
        assert store.add(ServedText.of([number, 7], [8, number], "own" if number % 2 else "traffic", 64))
    assert written(tmp_path, store) == [[number, 7, 8, number] for number in (*range(38, -1, -2), *range(39, 0, -2))]


def test_they_are_no_more_than_lookup_keeps(store: TextStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup_texts, "_MOST_TOKENS", 10)
    assert written(tmp_path, store) == []
    for number in range(8):
        store.add(ServedText.of([number], [8, 9, number], "traffic", 64))
    assert written(tmp_path, store) == [[7, 8, 9, 7], [6, 8, 9, 6]]
