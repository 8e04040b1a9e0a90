"""Things that a run makes once, whichever of its workers needs them first."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def run_directory(factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of a run share."""
    base = factory.getbasetemp()
    return base.parent if base.name.startswith("popen-") else base


@contextmanager
def locked(file: Path, *, shared: bool = False) -> Iterator[None]:
    """Holds the lock of a file, which ends with the process at the latest. shared: together with others that share."""
    with file.open("a") as opened:
        fcntl.flock(opened, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Returns a directory whose content is made by the worker that needs it first; the others wait for it."""
    place = run_directory(factory) / name
    done = place.with_name(f"{name}.made")
    with locked(place.with_name(f"{name}.lock")):
        if not done.exists():
            place.mkdir()
            make(place)
            done.touch()
    return place
