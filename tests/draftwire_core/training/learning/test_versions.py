"""The learned checkpoints on disk."""

from pathlib import Path

import pytest

from draftwire_core.training.learning.versions import Versions


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
