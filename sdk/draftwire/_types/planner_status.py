"""What a verifier's planner goes by and what it decides."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._types.calibration import Calibration, read_calibration
from draftwire._types.step_times import StepCost, read_step_costs
from draftwire.v1 import planner_status_pb2


@dataclass(frozen=True, slots=True)
class PlannerStatus:
    """How a verifier decides which draft tokens to verify, and whether to wait for more. Counts only grow."""

    step_costs: list[StepCost]
    """c(n) as it is expected now, by rows."""
    calibrations: list[Calibration]
    """One for each drafter of the pool."""
    steps: int
    """Steps that decoded at least one sequence."""
    sequences: int
    """Sequences that they decoded, counted anew in each step."""
    draft_tokens: int
    """Draft tokens that they verified."""
    last_draft_tokens: int
    """Draft tokens of all sequences in the last of them."""
    waits: int
    """Steps that were put off for proposals."""
    wait_seconds: float
    """Time by which they were put off."""
    expected_tokens: float
    """Tokens that they would have committed by their plans, had they not been put off."""
    committed_tokens: int
    """Tokens that they committed."""
    probe_rows: int
    """Rows that steps computed for drafters to learn from and did not verify."""

    @property
    def tree_size(self) -> float:
        """Draft tokens verified for a sequence in a step, on average; 0.0 before the first."""
        return self.draft_tokens / self.sequences if self.sequences else 0.0

    @property
    def gained_tokens(self) -> float:
        """Tokens that waiting for ``wait_seconds`` has gained; below 0 where it did not pay."""
        return self.committed_tokens - self.expected_tokens


def read_planner_status(message: planner_status_pb2.PlannerStatus) -> PlannerStatus:
    """Return a ``PlannerStatus`` from its message."""
    return PlannerStatus(
        step_costs=read_step_costs(message.step_costs),
        calibrations=[read_calibration(each) for each in message.calibrations],
        steps=message.steps,
        sequences=message.sequences,
        draft_tokens=message.draft_tokens,
        last_draft_tokens=message.last_draft_tokens,
        waits=message.waits,
        wait_seconds=message.wait_time.ToNanoseconds() / 1e9,
        expected_tokens=message.expected_tokens,
        committed_tokens=message.committed_tokens,
        probe_rows=message.probe_rows,
    )
