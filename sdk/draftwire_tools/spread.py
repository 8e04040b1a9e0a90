"""Several measurements of one thing: their median and range. Needs the standard library alone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of several measurements of one thing."""

    median: float
    """The median."""
    low: float
    """The minimum."""
    high: float
    """The maximum."""
    runs: int
    """Number of measurements."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of some values. Raises statistics.StatisticsError if there are none."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    @classmethod
    def ratio(cls, values: Sequence[float], over: Sequence[float]) -> Spread:
        """Returns the spread of values over those of the same runs."""
        return cls.of([a / b for a, b in zip(values, over, strict=True)])

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.low:.3g} to {self.high:.3g}, {self.runs} runs)"
