"""A histogram of millions of times, in bins of one per cent."""

from __future__ import annotations

import math

_LEAST = 1e-6
_LOG = math.log(1.01)


class WaitingTimes:
    """Counts of how often each time occurred."""

    def __init__(self) -> None:
        self.count = 0
        self.longest = 0.0
        self._sum = 0.0
        self._zeros = 0
        self._bins: dict[int, int] = {}

    def add(self, seconds: float, zeros: int = 0) -> None:
        """Counts a time, and `zeros` further times of zero."""
        self.count += 1 + zeros
        self._zeros += zeros
        if seconds <= _LEAST:
            self._zeros += 1
            return
        self._sum += seconds
        if seconds > self.longest:
            self.longest = seconds
        index = int(math.log(seconds / _LEAST) / _LOG)
        self._bins[index] = self._bins.get(index, 0) + 1

    @property
    def mean(self) -> float:
        """The mean of all times; NaN if there are none."""
        return self._sum / self.count if self.count else math.nan

    def quantile(self, share: float) -> float:
        """Returns the time that `share` of all times do not exceed, to one per cent; NaN if there are none."""
        if not self.count:
            return math.nan
        left = share * self.count - self._zeros
        if left <= 0:
            return 0.0
        for index in sorted(self._bins):
            left -= self._bins[index]
            if left <= 0:
                return min(_LEAST * math.exp((index + 1) * _LOG), self.longest)
        return self.longest
