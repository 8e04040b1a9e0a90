"""Steps of an engine's stand-in, as fast as its drafters can follow."""

from __future__ import annotations

import time
from collections.abc import Callable

_PATIENCE = 50.0
"""Longest time in seconds; less than a test may take, so that it says what does not come about."""


def step_until(step: Callable[[], None], until: Callable[[], bool]) -> None:
    """Steps until a condition holds, more and more slowly, so that drafters get enough time on any machine."""
    give_up = time.monotonic() + _PATIENCE
    pause = 0.002
    while not until():
        assert time.monotonic() < give_up, "it does not come about"
        step()
        time.sleep(pause)
        pause = min(0.25, 1.01 * pause)
