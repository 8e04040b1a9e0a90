"""Status of a verifier's planner: its statistics, the calibration of its drafters, and its decisions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from draftwire._types.from_message import From
from draftwire._types.step_times import StepCost


@dataclass(frozen=True, slots=True)
class AcceptanceClass:
    """A class of draft tokens, by rank and draft probability, and how often they are accepted."""

    rank: int
    """Rank among siblings, likeliest first: 0, 1, or 2 for all further ones."""
    above: float
    """Lower bound of the probability that the drafter gave the tokens; the upper bound is that of the rank's next
    class."""
    acceptance: float
    """Probability that such a token is on the target's path if its parent is, in [0, 1]."""
    observations: float
    """Number of tokens behind this estimate, older ones counting less. It starts with a few that stand for the initial
    guess."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The statistics by which a verifier chooses a drafter's tokens to verify, and decides whether to wait for them."""

    drafter: str
    """The drafter's name in the pool."""
    classes: list[AcceptanceClass]
    """Acceptance of its tokens, by rank and then by the drafter's own probability."""
    first_acceptance: float
    """Acceptance of first children of all classes: the expectation for a token that has not arrived yet."""
    response_seconds: Annotated[float, From("response_time")]
    """Smoothed time from a verdict that left an empty tree to the first proposal that builds on it; 0.0 for a drafter
    that is never waited for."""
    proposal_interval_seconds: Annotated[float, From("proposal_interval")]
    """Smoothed time from one proposal for a sequence to the next; 0.0 for a drafter that is never waited for."""


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
    wait_seconds: Annotated[float, From("wait_time")]
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
