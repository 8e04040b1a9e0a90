"""The state of learning on disk."""

from pathlib import Path

import pytest

from draftwire_core.training.learning.learning_state import LearningState


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert LearningState.read(tmp_path) is None
    state = LearningState("abc", "local:draft?model=m", promoted=3, before=0.5)
    state.write(tmp_path)
    assert LearningState.read(tmp_path) == state


@pytest.mark.parametrize("content", ["", "{", "[]", '{"target": "a"}', "3"])
def test_a_damaged_one_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "learning.json").write_text(content)
    assert LearningState.read(tmp_path) is None
