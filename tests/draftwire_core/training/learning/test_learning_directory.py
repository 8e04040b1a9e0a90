"""The state of learning on disk."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from draftwire import LearningRound
from draftwire_core.training.learning.learning_state import LearningState


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert LearningState.read(tmp_path) is None
    last = LearningRound(3, True, "better", 0.5, 0.6, 900, 1.0, 1.25, datetime(2026, 1, 2, tzinfo=UTC))
    for last_round in (None, last):
        state = LearningState("abc", "local:draft?model=m", promoted=3, before=0.5, last_round=last_round)
        state.write(tmp_path)
        assert LearningState.read(tmp_path) == state


def test_one_that_was_written_before_rounds_were_kept(tmp_path: Path) -> None:
    state = LearningState("abc", "local:draft?model=m", promoted=3)
    state.write(tmp_path)
    path = tmp_path / "learning.json"
    path.write_text(
        json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name != "last_round"})
    )
    assert LearningState.read(tmp_path) == state


@pytest.mark.parametrize("content", ["", "{", "[]", '{"last_round": {}}', '{"target": "a"}', "3"])
def test_a_damaged_one_is_none(content: str, tmp_path: Path) -> None:
    (tmp_path / "learning.json").write_text(content)
    assert LearningState.read(tmp_path) is None
