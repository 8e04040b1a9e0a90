"""The circuit breaker: suspends a drafter that breaks the protocol."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

_MOST_FAULTS = 3
_WINDOW_SECONDS = 60.0
_FIRST_PAUSE_SECONDS = 5.0
_LONGEST_PAUSE_SECONDS = 300.0


class CircuitBreaker:
    """Calls for a pause after three faults within a minute: 5 seconds at first, doubling each time up to 5 minutes.

    A minute without a fault after a pause resets the length to 5 seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: a clock in seconds with any origin."""
        self._clock = clock
        self._faults: deque[float] = deque(maxlen=_MOST_FAULTS)
        self._next_pause = _FIRST_PAUSE_SECONDS
        self._paused_until = -math.inf
        self.tripped = False
        """Whether a pause is due."""

    def count(self) -> bool:
        """Counts a fault. Returns whether a pause is due."""
        now = self._clock()
        if now - max([self._paused_until, *self._faults]) > _WINDOW_SECONDS:
            self._next_pause = _FIRST_PAUSE_SECONDS
        self._faults.append(now)
        if len(self._faults) == _MOST_FAULTS and now - self._faults[0] <= _WINDOW_SECONDS:
            self._faults.clear()
            self.tripped = True
        return self.tripped

    @property
    def paused_seconds(self) -> float:
        """Remaining seconds of the current pause; 0 without one."""
        return max(0.0, self._paused_until - self._clock())

    def take_pause(self) -> float:
        """Begins the pause that is due. Returns its length in seconds."""
        pause, self.tripped = self._next_pause, False
        self._next_pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._paused_until = self._clock() + pause
        return pause
