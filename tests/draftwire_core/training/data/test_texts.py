"""Texts are read, continued by the target, and cut into windows."""

import re
from pathlib import Path
from typing import Any

import pytest

from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.training.data.texts import Windows, continued, read_texts


def test_files_of_texts(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    text = tmp_path / "b.txt"
    text.write_text("three\n")
    assert read_texts([lines, text]) == ["one", "two", "three\n"]


@pytest.mark.parametrize("line", ["{", "[]", '{"prompt": 3}', '{"id": "x"}'])
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f'{{"prompt": "one"}}\n{line}\n')
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: "):
        read_texts([path])


def test_the_target_continues_them(target: Path) -> None:
    model = PackedModel.load(str(target), slots=1000, dtype="float32")
    tokenizer = Tokenizer.load(str(target))
    told: list[str] = []
    options: dict[str, Any] = {"tokens": 10, "temperature": 0.8, "seed": 1, "say": told.append}
    texts = ["w1 w2 w3", "w4"]
    alone = continued(model, tokenizer, texts, rounds=0, **options)
    documents = continued(model, tokenizer, texts, rounds=2, **options)
    assert [document[: len(text)] for document, text in zip(documents, alone * 2, strict=True)] == alone * 2
    assert all(len(document) > len(text) for document, text in zip(documents, alone * 2, strict=True))
    assert documents[0] != documents[2], "each round draws anew"
    assert documents == continued(model, tokenizer, texts, rounds=2, **options)
    assert told
    assert all(re.match(r"tokens of continuations: \d+ of 40 \(after ", line) for line in told)


def test_windows() -> None:
    windows = Windows([[1, 2, 3, 4, 5], [6], [7, 8]], 3, 2)
    assert windows.labels.tolist() == [[1, 2, 3], [4, 5, -100], [7, 8, -100]]
    with pytest.raises(ValueError, match="too short for a window of 4 tokens"):
        Windows([[1, 2]], 8, 4)


def test_each_window_comes_once_a_round() -> None:
    windows = Windows([[index] * 2 for index in range(7)], 2, 2)
    seen = [int(row[0]) for step in range(7) for row in windows.batch(step, 2, seed=3)]
    assert sorted(seen[:7]) == sorted(seen[7:]) == list(range(7))
    assert seen[:7] != seen[7:]
