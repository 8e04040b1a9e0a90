"""Tokens per second over time, in buckets."""

from __future__ import annotations

import math
from collections.abc import Sequence

BUCKET_SECONDS = 0.1


class TokenRate:
    """Counts tokens by when they came."""

    def __init__(self, start: float):
        """start: time of the first bucket, by the clock of `add`."""
        self._start = start
        self.buckets: list[int] = []

    def add(self, at: float, tokens: int) -> None:
        """Count tokens that came at that time."""
        index = int((at - self._start) / BUCKET_SECONDS)
        self.buckets.extend([0] * (index + 1 - len(self.buckets)))
        self.buckets[index] += tokens

    def rate(self, start: float, end: float) -> float:
        """Tokens per second between two times, in whole buckets."""
        chosen = self.buckets[self._index(start) : self._index(end)]
        return sum(chosen) / (len(chosen) * BUCKET_SECONDS) if chosen else 0.0

    def smoothed(self, start: float, end: float, window: float) -> list[float]:
        """Tokens per second over every stretch of `window` seconds that lies between two times."""
        return moving_rate(self.buckets[self._index(start) : self._index(end)], window)

    def _index(self, at: float) -> int:
        return max(0, math.ceil((at - self._start) / BUCKET_SECONDS - 1e-9))


def moving_rate(buckets: Sequence[int], window: float) -> list[float]:
    """Tokens per second over every stretch of `window` seconds; none if the buckets are fewer."""
    width = max(1, round(window / BUCKET_SECONDS))
    return [sum(buckets[i : i + width]) / (width * BUCKET_SECONDS) for i in range(len(buckets) - width + 1)]
