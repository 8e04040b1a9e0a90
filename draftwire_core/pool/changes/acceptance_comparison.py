"""A running significance test: whether fewer tokens of one drafter are accepted than of another."""

from __future__ import annotations

import math
from dataclasses import dataclass

SAMPLE_STEPS = 32
"""Number of steps of a sequence averaged into one sample: single steps vary too much and are not independent."""
_LEAST_SAMPLES = 8
_SIGNIFICANT = -3.0


@dataclass(slots=True)
class AcceptanceSample:
    """Mean and variance of a stream of numbers (Welford's algorithm)."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """Adds a number."""
        self.count += 1
        away = value - self.mean
        self.mean += away / self.count
        self._squares += away * (value - self.mean)

    @property
    def variance(self) -> float:
        """The unbiased estimate of the variance; 0 for fewer than two numbers."""
        return self._squares / (self.count - 1) if self.count > 1 else 0.0


def welch_t(new: AcceptanceSample, old: AcceptanceSample) -> float:
    """Welch's t of two samples of at least one number each; negative if the new sample's mean is lower."""
    difference = new.mean - old.mean
    spread = math.sqrt(new.variance / new.count + old.variance / old.count)
    if spread == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / spread


def significantly_worse(new: AcceptanceSample, old: AcceptanceSample) -> bool:
    """Whether the new mean is significantly lower: at least 8 numbers in each sample, and t below -3."""
    return min(new.count, old.count) >= _LEAST_SAMPLES and welch_t(new, old) < _SIGNIFICANT
