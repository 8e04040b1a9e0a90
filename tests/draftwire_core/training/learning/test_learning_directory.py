"""The directory of a learner: its lock, its state, and the checkpoints that were learned."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from draftwire import LearningRound
from draftwire_core.training.learning.learning_directory import DirectoryLock, LearningState, Versions


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
    told: list[str] = []
    assert LearningState.read(tmp_path, told.append) is None
    assert not told
    (tmp_path / "learning.json").write_text(content)
    assert LearningState.read(tmp_path, told.append) is None
    assert told == [f"warning: {tmp_path}/learning.json is damaged: learning begins again"]


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    for name in ("v00001", "v00003", "v00004", "v00006", "v00007.new"):
        (tmp_path / name).mkdir()
    return Versions(tmp_path)


@pytest.mark.parametrize(
    ("promoted", "candidate", "left"),
    [(4, 0, "v00003 v00004"), (4, 6, "v00003 v00004 v00006"), (1, 0, "v00001"), (0, 0, ""), (0, 6, "v00006")],
)
def test_the_one_that_drafts_and_the_one_before_stay(
    promoted: int, candidate: int, left: str, versions: Versions, tmp_path: Path
) -> None:
    versions.tidy(promoted, candidate)
    assert sorted(each.name for each in tmp_path.iterdir()) == left.split()


def test_a_drafters_model_is_known_by_its_path(versions: Versions, tmp_path: Path) -> None:
    assert versions.number(str(versions.path(12))) == 12
    assert versions.number(str(tmp_path / "other")) is None
    assert versions.number("/elsewhere/v00012") is None


def test_one_at_a_time(tmp_path: Path) -> None:
    with DirectoryLock(tmp_path):
        with pytest.raises(ValueError, match=f"--dir: another learner uses {tmp_path}"), DirectoryLock(tmp_path):
            pytest.fail("it is taken")
        with pytest.raises(ValueError, match="another learner"), DirectoryLock(tmp_path):
            pytest.fail("it is still taken")
    with DirectoryLock(tmp_path):
        pass
