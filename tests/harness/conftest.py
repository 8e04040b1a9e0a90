"""Directories of the workers of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


class WorkerDirectories:
    """The part of pytest's factory of directories that names a worker's own."""

    def __init__(self, base: Path) -> None:
        self._base = base
        base.mkdir(exist_ok=True)

    def getbasetemp(self) -> Path:
        return self._base


@pytest.fixture
def directories_of(tmp_path: Path) -> Callable[[str], WorkerDirectories]:
    """Returns a function that gives a worker's directories in a run of this test's own."""
    return lambda worker: WorkerDirectories(tmp_path / f"popen-{worker}")
