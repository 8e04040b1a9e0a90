"""Things that a run makes once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.harness.suite.run_directory import made_once


def test_a_directory_is_made_by_who_needs_it_first(directories_of: Callable[[str], Any]) -> None:
    made: list[Path] = []

    def make(place: Path) -> None:
        made.append(place)
        (place / "weights").write_text("1")

    for worker in ("gw0", "gw1", "gw0"):
        assert (made_once(directories_of(worker), "model", make) / "weights").read_text() == "1"
    assert len(made) == 1
