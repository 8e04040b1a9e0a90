"""Rollouts: the gradual replacement of one drafter by another."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from draftwire._types.from_message import From

RolloutState = Literal["running", "promoted", "withdrawn", "unknown"]
"""State of a rollout: the new drafter has its share, has taken over, or has returned its sequences."""


@dataclass(frozen=True, slots=True)
class RolloutSide:
    """One of the two drafters of a rollout, with its counts during the rollout."""

    name: str
    """The drafter's name in the pool."""
    sequences: int
    """Sequences that use it now."""
    steps: int
    """Steps of the target that verified its draft tokens."""
    draft_tokens: int
    """Draft tokens verified."""
    accepted_tokens: int
    """Draft tokens accepted."""
    sequence_steps: int = 0
    """Steps of the sequences that it drafts for, summed over sequences, whether or not its draft tokens were
    verified."""
    drafting_seconds: Annotated[float, From("drafting_time")] = 0.0
    """Time that it took in the verifier's engine; 0.0 for a drafter service. A single step counts as at most four
    average ones."""

    @property
    def drafting_per_step(self) -> float:
        """Seconds of ``drafting_seconds`` per sequence and step; 0.0 before the first step."""
        return self.drafting_seconds / self.sequence_steps if self.sequence_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens, in [0, 1]; 0.0 if nothing was verified."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def accepted_per_step(self) -> float:
        """Draft tokens accepted per step; 0.0 before the first step."""
        return self.accepted_tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """A rollout, running or ended."""

    old: RolloutSide
    """The old drafter, which keeps the other sequences."""
    new: RolloutSide
    """The new drafter."""
    share: float
    """The new drafter's share of the sequences, in (0, 1]."""
    state: RolloutState
    """State of the rollout."""
    reason: str
    """Reason why it ended; empty while it runs."""
    started_at: datetime | None
    """Time at which it began (UTC)."""
    ended_at: datetime | None
    """Time at which it ended (UTC)."""


RolloutList = list[Rollout]
"""The running rollouts, then the recently ended ones, newest first."""
