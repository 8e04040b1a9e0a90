"""Waits for conditions without an event, and retries what a busy machine may spoil."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 20.0
"""Time limit in seconds of a wait for something that takes well below a second: a busy machine still gets there, and a
failure costs seconds."""
LONG_PATIENCE = 240.0
"""Time limit in seconds of a wait for whole programs and for starts of services."""
TRIES = 10


def eventually(look: Callable[[], T], what: str, *, patience: float = PATIENCE) -> T:
    """Returns the result of `look` once it is true."""
    deadline = time.monotonic() + patience
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {patience:g} seconds: {what}"
        time.sleep(0.02)
    return found


def sometimes(play: Callable[[], T], what: str) -> T:
    """Returns the result of `play` once it is true, within a few tries.

    Use it for outcomes that depend on the machine's load: that a guess comes in time, or that a request still runs when
    something happens to it. `play` itself asserts what must hold in each try.
    """
    for _ in range(TRIES):
        if found := play():
            return found
    raise AssertionError(f"not once in {TRIES} plays: {what}")
