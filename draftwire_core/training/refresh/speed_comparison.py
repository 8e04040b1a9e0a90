"""The estimated speeds of two drafters, by the verifier's own costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from draftwire import ServedRequest, StepCost
from draftwire_tools.top.planner_figures import cost_of

_MOST_LOSS = 0.01
"""Share of the old drafter's speed that the new one may lose at most, within the errors that are asked for."""


@dataclass(frozen=True, slots=True)
class StepPrices:
    """The costs of a target's steps."""

    costs: Sequence[StepCost]
    """c(n), by rows; at least one."""
    batch: float
    """Sequences of a step on average, at least 1."""

    def speed(self, accepted: float, drafted: float, drafting: float) -> float:
        """Returns the tokens per second of one sequence. accepted, drafted: draft tokens per step. drafting: seconds
        per step that its drafter takes in the engine's thread."""
        step = cost_of(self.batch * (1 + drafted), self.costs)
        assert step is not None, "a verifier measures c(n) before it serves"
        return (1 + accepted) / (step / self.batch + drafting)


@dataclass
class SideRequests:
    """The finished requests of one of the two drafters."""

    name: str
    accepted_per_step: list[float] = field(default_factory=list)
    """Accepted draft tokens per step, by request."""
    drafted_per_step: list[float] = field(default_factory=list)
    """Verified draft tokens per step, by request."""

    def __len__(self) -> int:
        return len(self.accepted_per_step)

    def take(self, request: ServedRequest, other: str) -> None:
        """Counts a request, if this one of the two drafted for it; drafters of other kinds draft with both alike."""
        counts = request.speculation
        if self.name in request.drafters and other not in request.drafters and counts.steps:
            self.accepted_per_step.append(counts.accepted_tokens / counts.steps)
            self.drafted_per_step.append(counts.draft_tokens / counts.steps)

    @property
    def accepted(self) -> float:
        """Returns the mean of the accepted draft tokens per step."""
        return statistics.fmean(self.accepted_per_step)

    def speeds(self, prices: StepPrices, drafting: float) -> list[float]:
        """Returns the estimated speed of each request, in tokens per second. drafting: seconds per step that the
        drafter takes in the engine's thread."""
        counts = zip(self.accepted_per_step, self.drafted_per_step, strict=True)
        return [prices.speed(accepted, drafted, drafting) for accepted, drafted in counts]


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """The speed with a new drafter over that with an old one."""

    ratio: float
    error: float
    """Standard error of the ratio; 0 for single requests."""

    @classmethod
    def of(cls, old: Sequence[float], new: Sequence[float]) -> Self:
        """Compares the speeds of the requests of either drafter; at least one each."""
        ratio = statistics.fmean(new) / statistics.fmean(old)
        return cls(ratio, ratio * math.hypot(_relative_error(old), _relative_error(new)))

    def faster(self, errors: float) -> bool:
        """Whether the new drafter is faster, and at least about as fast at the lower end of the ratio's uncertainty.
        errors: standard errors from the ratio to that end."""
        return self.ratio > 1 and self.ratio - errors * self.error >= 1 - _MOST_LOSS

    def slower(self, errors: float) -> bool:
        """Whether the new drafter is no faster at the upper end of the ratio's uncertainty. errors: as for `faster`."""
        return self.ratio + errors * self.error <= 1


def _relative_error(speeds: Sequence[float]) -> float:
    if len(speeds) < 2:
        return 0.0
    return statistics.stdev(speeds) / math.sqrt(len(speeds)) / statistics.fmean(speeds)
