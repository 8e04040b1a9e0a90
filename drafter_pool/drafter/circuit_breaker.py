"""When a drafter that breaks the protocol is left alone for a while."""

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
    """Three faults within a minute ask for a pause: 5 seconds, then twice as long each time, up to 5 minutes.

    A minute without a fault after a pause makes the next one short again.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: seconds, from any start."""
        self._clock = clock
        self._faults: deque[float] = deque(maxlen=_MOST_FAULTS)
        self._next_pause = _FIRST_PAUSE_SECONDS
        self._paused_until = -math.inf
        self.tripped = False
        """Whether a pause is due."""

    def count(self) -> bool:
        """Count a fault; True if it is one too many."""
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
        """Seconds left of a pause; 0 without one."""
        return max(0.0, self._paused_until - self._clock())

    def take_pause(self) -> float:
        """The pause that is due, in seconds; to be called once, when it begins."""
        pause, self.tripped = self._next_pause, False
        self._next_pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._paused_until = self._clock() + pause
        return pause
