"""c(n): the time of one forward pass by its number of rows, measured at load and kept up to date."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

_WEIGHT = 0.1
"""Weight of a new measurement in the running averages."""
_OUTLIER = 4.0
"""Measurements beyond this multiple of what was expected count as this multiple: a machine that was briefly busy
says little about the cost of a step."""


class StepCost:
    """A piecewise linear curve through measured points, scaled by how steps have gone lately."""

    def __init__(self, rows: Sequence[int], seconds: Sequence[float]):
        """rows: ascending; seconds: the time of a step of so many rows. Raises ValueError if they do not match."""
        if not rows or len(rows) != len(seconds) or list(rows) != sorted(set(rows)) or min(seconds) <= 0:
            raise ValueError("a cost curve needs ascending row counts with a positive time each")
        self._rows = list(rows)
        # More rows never cost less; measuring noise that says so would make the planner chase it.
        self._seconds = [max(seconds[: index + 1]) for index in range(len(seconds))]
        self._scale = 1.0

    def seconds(self, rows: int) -> float:
        """Expected time of a step of `rows` rows, in seconds."""
        return self._scale * self._curve(rows)

    def rows_beside(self, rows: int, most: int, stretch: float) -> int:
        """How many rows, at most `most`, may join a step of `rows` rows before it takes `stretch` times as long."""
        limit = stretch * self.seconds(rows)
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(rows + middle) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def observe(self, rows: int, seconds: float) -> None:
        """Take in a measured step."""
        ratio = min(seconds / self.seconds(rows), _OUTLIER)
        self._scale *= 1 + _WEIGHT * (ratio - 1)

    def _curve(self, rows: int) -> float:
        xs, ys = self._rows, self._seconds
        if len(xs) == 1:
            return ys[0]
        right = min(max(bisect.bisect_left(xs, rows), 1), len(xs) - 1)
        left = right - 1
        slope = (ys[right] - ys[left]) / (xs[right] - xs[left])
        return max(ys[left] + slope * (rows - xs[left]), ys[0])
