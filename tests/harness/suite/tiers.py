"""Tiers of the suite: quick, default, slow and all. Whole files and classes are in a tier, never a single parameter.

A file is slow if it says `pytestmark = pytest.mark.slow` (or begins its list of marks so), a class if
`@pytest.mark.slow` stands before it. A slow file is not even imported in the other tiers, and the tests of a slow class
are not made. The quick tier is the default tier without the files that start processes (`pytest.mark.processes`) and
without those whose recorded time is more than `QUICK_SECONDS`.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness.suite.durations import Durations

TIERS = ("quick", "default", "slow", "all")
QUICK_SECONDS = 2.0
"""Processor time of a file, in seconds, above which it is not in the quick tier."""
SLOW_SECONDS = 900.0
"""Time after which a slow test is taken to hang."""
_SLOW_FILE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow\b", re.MULTILINE)
_PROCESSES_FILE = re.compile(r"^pytestmark = (\[\s*)?(pytest\.mark\.slow,\s*)?pytest\.mark\.processes\b", re.MULTILINE)


class Tiers:
    """The plugin that leaves out what is not in the tier of a run."""

    def __init__(self, tier: str, durations: Durations) -> None:
        self.tier = tier
        self._durations = durations

    def pytest_ignore_collect(self, collection_path: Path, config: pytest.Config) -> bool | None:
        """Leaves out whole files before they are imported."""
        if self.tier in ("slow", "all") or not collection_path.match("test_*.py"):
            return None
        text = collection_path.read_text(encoding="utf-8")
        if _SLOW_FILE.search(text):
            return True
        if self.tier == "quick":
            name = collection_path.relative_to(config.rootpath).as_posix()
            if _PROCESSES_FILE.search(text) or self._durations.seconds(name, self.tier) > QUICK_SECONDS:
                return True
        return None

    @pytest.hookimpl(tryfirst=True)
    def pytest_pycollect_makeitem(self, obj: object) -> list[pytest.Item] | None:
        """Leaves out slow classes before their tests are made, which takes each worker seconds."""
        if self.tier in ("slow", "all") or not isinstance(obj, type):
            return None
        marks = getattr(obj, "pytestmark", [])
        return [] if isinstance(marks, list) and any(mark.name == "slow" for mark in marks) else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves out slow classes, and gives slow tests more time. Raises UsageError for a test that is marked slow by
        itself."""
        for item in items:
            if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(SLOW_SECONDS))
            if any(mark.name == "slow" for mark in item.own_markers):
                raise pytest.UsageError(f"{item.nodeid}: `slow` marks a whole file or a whole class")
        if self.tier == "all":
            return
        left_out = ("slow", "processes") if self.tier == "quick" else ("slow",)
        chosen = [
            item for item in items if any(item.get_closest_marker(mark) for mark in left_out) == (self.tier == "slow")
        ]
        if len(chosen) < len(items):
            kept = set(chosen)
            config.hook.pytest_deselected(items=[item for item in items if item not in kept])
            items[:] = chosen
