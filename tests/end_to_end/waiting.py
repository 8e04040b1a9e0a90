"""Waiting for what has no event of its own."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds; a busy machine needs its time."""


def eventually(look: Callable[[], T], what: str) -> T:
    """What `look` returns as soon as that is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} seconds: {what}"
        time.sleep(0.02)
    return found
