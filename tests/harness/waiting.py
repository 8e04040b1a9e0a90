"""Waiting for what has no event of its own, and for what happens now and then."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 240.0
"""Seconds: the deadline of whatever a test waits for. A busy machine needs its time."""
TRIES = 10


def eventually(look: Callable[[], T], what: str) -> T:
    """Returns the result of `look` once it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} seconds: {what}"
        time.sleep(0.02)
    return found


def sometimes(play: Callable[[], T], what: str) -> T:
    """Returns the result of `play` once it is true, after a few plays.

    For what a busy machine has a say in: that a guess comes in time, or that a request still runs when something
    happens to it. What has to hold in each play, it asserts itself.
    """
    for _ in range(TRIES):
        if found := play():
            return found
    raise AssertionError(f"not once in {TRIES} plays: {what}")
