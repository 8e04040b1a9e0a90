"""Status of a verifier's planner: its statistics and its decisions."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire._types.calibration import Calibration, read_calibration
from draftwire._types.step_times import StepCost, read_step_costs
from draftwire.v1 import planner_status_pb2


@dataclass(frozen=True, slots=True)
class PlannerStatus:
    """Status of the planner, which chooses draft tokens to verify and decides whether to wait for more. Counts only
    grow."""

    step_costs: list[StepCost]
    """Current estimate of c(n), by rows."""
    calibrations: list[Calibration]
    """Calibration of each drafter in the pool."""
    steps: int
    """Steps that decoded at least one sequence."""
    sequences: int
    """Sequences decoded, summed over these steps."""
    draft_tokens: int
    """Draft tokens verified in these steps."""
    last_draft_tokens: int
    """Draft tokens of all sequences in the last step."""
    waits: int
    """Steps delayed to wait for proposals."""
    wait_seconds: float
    """Total delay of the delayed steps."""
    expected_tokens: float
    """Tokens that the delayed steps would have committed without the delay, by their plans."""
    committed_tokens: int
    """Tokens that the delayed steps committed."""
    probe_rows: int
    """Rows computed only for drafters to learn from, without being verified."""

    @property
    def tree_size(self) -> float:
        """Average number of draft tokens verified per sequence and step; 0.0 before the first step."""
        return self.draft_tokens / self.sequences if self.sequences else 0.0

    @property
    def gained_tokens(self) -> float:
        """Tokens gained by waiting; negative if it did not pay."""
        return self.committed_tokens - self.expected_tokens


def read_planner_status(message: planner_status_pb2.PlannerStatus) -> PlannerStatus:
    """Returns a ``PlannerStatus`` from its message."""
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
