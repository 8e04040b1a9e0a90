"""Tokens per second over time, in buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence

BUCKET_SECONDS = 0.1


class TokenRate:
    """Counts tokens by arrival time and by the time in which they were computed.

    A step delivers its tokens all at once, and steps may be longer than buckets. So rates are taken of tokens spread
    evenly over the time since the stream's last ones; a window's rate then does not depend on where steps end.
    """

    def __init__(self, start: float):
        """start: time of the first bucket, by the clock of `add`."""
        self._start = start
        self.arrived: list[int] = []
        """Tokens that arrived in each bucket."""
        self.spread: list[float] = []
        """Tokens by the buckets in which they were computed."""

    def add(self, since: float, at: float, tokens: int) -> None:
        """Counts `tokens` that arrived at time `at` on a stream that had received nothing since `since`."""
        first, last = max(0.0, (since - self._start) / BUCKET_SECONDS), (at - self._start) / BUCKET_SECONDS
        missing = int(last) + 1 - len(self.arrived)
        self.arrived.extend([0] * missing)
        self.spread.extend([0.0] * missing)
        self.arrived[int(last)] += tokens
        if last <= first:
            self.spread[int(last)] += tokens
            return
        for index in range(int(first), int(last) + 1):
            self.spread[index] += tokens * (min(last, index + 1) - max(first, index)) / (last - first)

    def rate(self, start: float, end: float) -> float:
        """Returns the tokens per second between two times, in whole buckets."""
        chosen = self.spread[self._index(start) : self._index(end)]
        return sum(chosen) / (len(chosen) * BUCKET_SECONDS) if chosen else 0.0

    def smoothed(self, start: float, end: float, window: float) -> list[float]:
        """Returns the tokens per second of every stretch of `window` seconds between two times."""
        return moving_rate(self.spread[self._index(start) : self._index(end)], window)

    def _index(self, at: float) -> int:
        return max(0, math.ceil((at - self._start) / BUCKET_SECONDS - 1e-9))


def moving_rate(buckets: Sequence[float], window: float) -> list[float]:
    """Returns the tokens per second of every stretch of `window` seconds; empty if there are fewer buckets."""
    width = max(1, round(window / BUCKET_SECONDS))
    return [sum(buckets[i : i + width]) / (width * BUCKET_SECONDS) for i in range(len(buckets) - width + 1)]
