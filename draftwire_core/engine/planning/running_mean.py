"""A running mean of measurements, of which any may have been held up."""

from __future__ import annotations

OUTLIER = 4.0
"""Measurements beyond this multiple of the mean count as this multiple. A step, a drafting or an answer that the
machine held up takes ten or a hundred times as long as the others, and must not move the mean by as much. What has
really become so much slower raises the mean with every measurement, so the mean follows a few measurements later."""


class RunningMean:
    """An exponentially weighted mean that a single slow moment hardly moves."""

    __slots__ = ("_floor", "_weight", "known", "value")

    def __init__(self, start: float | None = None, *, weight: float, floor: float = 0.0) -> None:
        """start: the mean before the first measurement; None if the first measurement is to begin it. weight: of a
        new measurement. floor: measurements up to this count in full, however small the mean is; math.inf where
        outliers are to count as they are.

        Raises ValueError unless 0 < weight <= 1."""
        if not 0 < weight <= 1:
            raise ValueError(f"weight must be above 0 and at most 1, got {weight}")
        self.known = start is not None
        """Whether there is a start value or a measurement."""
        self.value = 0.0 if start is None else start
        """The mean; 0 while it is not known."""
        self._weight = weight
        self._floor = floor

    def add(self, measured: float) -> float:
        """Adds a measurement, a negative one as 0. Returns the value as it counted."""
        if measured < 0.0:
            measured = 0.0
        if not self.known:
            self.value, self.known = measured, True
            return measured
        # Not by `min` and `max`: each proposal adds to several means.
        most = OUTLIER * self.value
        if measured > most and measured > self._floor:
            measured = most if most > self._floor else self._floor
        self.value += self._weight * (measured - self.value)
        return measured
