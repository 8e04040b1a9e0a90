"""Whether one drafter is accepted significantly less than another: a running comparison of two samples."""

from __future__ import annotations

import math
from dataclasses import dataclass

SAMPLE_STEPS = 32
"""Steps of a sequence whose mean is one sample: single steps vary too much, and are not independent."""
_LEAST_SAMPLES = 8
_SIGNIFICANT = -3.0


@dataclass(slots=True)
class Sample:
    """Mean and variance of numbers that come one by one (Welford)."""

    count: int = 0
    mean: float = 0.0
    _squares: float = 0.0

    def add(self, value: float) -> None:
        """Take in a number."""
        self.count += 1
        away = value - self.mean
        self.mean += away / self.count
        self._squares += away * (value - self.mean)

    @property
    def variance(self) -> float:
        """The unbiased estimate; 0 for fewer than two numbers."""
        return self._squares / (self.count - 1) if self.count > 1 else 0.0


def welch_t(new: Sample, old: Sample) -> float:
    """Welch's t of two samples, each with at least one number: negative when the new one is lower."""
    difference = new.mean - old.mean
    spread = math.sqrt(new.variance / new.count + old.variance / old.count)
    if spread == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / spread


def significantly_worse(new: Sample, old: Sample) -> bool:
    """Whether the new one is lower by more than chance explains: at least 8 samples of each, t below -3."""
    return min(new.count, old.count) >= _LEAST_SAMPLES and welch_t(new, old) < _SIGNIFICANT
