"""Counts of a drafter's work, and its drafting speed."""

from __future__ import annotations

import math
from dataclasses import dataclass

_SMOOTHING = 0.1
_LEAST_STEP_SECONDS = 1e-4
"""Minimum time of a step, so that missing or false reports cannot give a drafter infinite speed."""
LONGEST_STEP_SECONDS = 60.0
_MEMORY_SECONDS = 10.0
"""Time constant of the decay of earlier measurements, in seconds of drafting time."""
_MEASURED_STEPS = 32
_MEASURED_OPENINGS = 4


@dataclass(slots=True)
class DrafterStats:
    """Counts of a drafter's work since it was attached."""

    draft_tokens: int = 0
    accepted_tokens: int = 0
    lossy_draft_tokens: int = 0
    """Draft tokens of requests with a lossy acceptance rule; draft_tokens does not include them."""
    lossy_accepted_tokens: int = 0
    proposed_nodes: int = 0
    """Nodes received from a drafter service, stale ones included."""
    stale_nodes: int = 0
    round_trip_seconds: float = 0.0
    """Smoothed time from a ping to its answer, which a drafter sends between two of its steps; 0 before the first."""
    step_seconds: float = 0.0
    """Smoothed time of one drafting step."""

    def count(self, drafted: int, accepted: int, *, lossless: bool) -> None:
        """Counts verified and accepted draft tokens. lossless: whether the request's acceptance rule is lossless."""
        if lossless:
            self.draft_tokens += drafted
            self.accepted_tokens += accepted
        else:
            self.lossy_draft_tokens += drafted
            self.lossy_accepted_tokens += accepted

    def count_step(self, seconds: float) -> None:
        """Counts the time of a step as the drafter reports it; implausible times are ignored."""
        if plausible(seconds):
            self.step_seconds += _SMOOTHING * (seconds - self.step_seconds) if self.step_seconds else seconds

    def count_round_trip(self, seconds: float) -> None:
        """Counts the time from a ping to its answer."""
        last = self.round_trip_seconds
        self.round_trip_seconds += _SMOOTHING * (seconds - last) if last else seconds


class DraftingSpeed:
    """Recent accepted draft tokens per second of drafting time. Both sums decay: work done t seconds of drafting time
    ago has the weight exp(-t / 10)."""

    def __init__(self) -> None:
        self._accepted = 0.0
        self._seconds = 0.0
        self._steps = 0
        self._openings = 0

    @property
    def accepted_per_second(self) -> float:
        """Accepted draft tokens per second of drafting time; 0 before the first step."""
        return self._accepted / self._seconds if self._seconds else 0.0

    @property
    def measured(self) -> bool:
        """Whether the drafter has made enough steps or had enough sequences; so a silent drafter counts as measured."""
        return self._steps >= _MEASURED_STEPS or self._openings >= _MEASURED_OPENINGS

    def count_opening(self) -> None:
        """Counts an opened sequence."""
        self._openings += 1

    def count_step(self, seconds: float) -> None:
        """Counts the time of a drafting step; implausible times are ignored."""
        if not plausible(seconds):
            return
        seconds = max(seconds, _LEAST_STEP_SECONDS)
        keep = math.exp(-seconds / _MEMORY_SECONDS)
        self._accepted *= keep
        self._seconds = self._seconds * keep + seconds
        self._steps += 1

    def count_accepted(self, tokens: int) -> None:
        """Counts accepted draft tokens."""
        self._accepted += tokens


def plausible(seconds: float) -> bool:
    """Whether a time is plausible for a drafter's step; NaN is not."""
    return 0 <= seconds <= LONGEST_STEP_SECONDS
