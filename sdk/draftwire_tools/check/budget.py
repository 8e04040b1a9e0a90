"""The time of a check, divided among its parts."""

from __future__ import annotations

import time
from collections.abc import Callable


class Budget:
    """Divides the remaining time equally among the parts that are still to come."""

    def __init__(self, seconds: float, parts: int, clock: Callable[[], float] = time.monotonic) -> None:
        """seconds: of all parts together. parts: their number."""
        self._clock = clock
        self._end = clock() + seconds
        self._parts = parts

    @property
    def remaining(self) -> float:
        """Remaining seconds; 0 when the time is over."""
        return max(0.0, self._end - self._clock())

    def begin(self, parts: int = 1) -> Callable[[], bool]:
        """Begins the next part, or several parts as one. Returns a function that says whether its time is over."""
        end = self._clock() + self.take(parts)
        return lambda: self._clock() >= end

    def take(self, parts: int = 1) -> float:
        """Begins the next part, or several parts as one. Returns its seconds."""
        share = self.remaining * parts / max(parts, self._parts)
        self._parts -= parts
        return share
