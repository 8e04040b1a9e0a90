"""A histogram of plain numbers, cheap enough for every step."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts values by bucket. One thread observes; any thread may read a consistent set of buckets.

    prometheus_client's histogram takes a lock for each value and scans all buckets; this one is for values observed
    once per step.
    """

    __slots__ = ("_counts", "_edges", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """edges: upper bounds of the buckets, ascending and inclusive; one more bucket takes larger values.

        Raises ValueError if they do not ascend.
        """
        if not edges or list(edges) != sorted(set(edges)):
            raise ValueError("a histogram's edges must ascend")
        self._edges = tuple(map(float, edges))
        self._counts = [0] * (len(edges) + 1)
        self.sum = 0.0
        """Sum of all values."""

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self._counts)

    def observe(self, value: float) -> None:
        """Adds a value."""
        self._counts[bisect_left(self._edges, value)] += 1
        self.sum += value

    def add(self, other: Histogram) -> None:
        """Adds the counts of another histogram with the same edges. Raises ValueError if the edges differ."""
        if other._edges != self._edges:
            raise ValueError("histograms with different edges cannot be added")
        for index, count in enumerate(other._counts):
            self._counts[index] += count
        self.sum += other.sum

    def buckets(self) -> list[tuple[str, float]]:
        """Returns the upper bound and cumulative count of each bucket; the last bound is +Inf."""
        total, found = 0, []
        for edge, count in zip((*map(repr, self._edges), "+Inf"), self._counts.copy(), strict=True):
            total += count
            found.append((edge, float(total)))
        return found
