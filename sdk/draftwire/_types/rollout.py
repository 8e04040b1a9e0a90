"""One drafter taking another's place by degrees."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from draftwire.v1 import drafter_pool_service_pb2 as pb

RolloutState = Literal["running", "promoted", "withdrawn", "unknown"]
"""How far a roll-out is: the new drafter has its share, has taken over, or has given its sequences back."""

_STATES: dict[int, RolloutState] = {
    pb.ROLLOUT_STATE_RUNNING: "running",
    pb.ROLLOUT_STATE_PROMOTED: "promoted",
    pb.ROLLOUT_STATE_WITHDRAWN: "withdrawn",
}


@dataclass(frozen=True, slots=True)
class RolloutSide:
    """How one of the two drafters has done during a roll-out."""

    name: str
    """The drafter's name in the pool."""
    sequences: int
    """Sequences that use it now."""
    steps: int
    """Steps of the target that verified draft tokens of it."""
    draft_tokens: int
    """Draft tokens verified."""
    accepted_tokens: int
    """Draft tokens accepted."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens, in [0, 1]; 0.0 when nothing was verified."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def accepted_per_step(self) -> float:
        """Draft tokens accepted per step that verified some; 0.0 when there was no step."""
        return self.accepted_tokens / self.steps if self.steps else 0.0


@dataclass(frozen=True, slots=True)
class Rollout:
    """A roll-out, under way or ended."""

    old: RolloutSide
    """The drafter that has the rest."""
    new: RolloutSide
    """The drafter that has the share."""
    share: float
    """Share of sequences for the new one, in (0, 1]."""
    state: RolloutState
    """How far it is."""
    reason: str
    """Why it ended; empty while it runs."""
    started_at: datetime | None
    """When it began (UTC)."""
    ended_at: datetime | None
    """When it ended (UTC)."""


RolloutList = list[Rollout]
"""Roll-outs: those under way, then those that ended lately, newest first."""


def read_rollout(message: pb.Rollout) -> Rollout:
    """Return a ``Rollout`` from its message."""
    return Rollout(
        old=_side(message.old),
        new=_side(message.new),
        share=message.share,
        state=_STATES.get(message.state, "unknown"),
        reason=message.reason,
        started_at=message.started_at.ToDatetime(tzinfo=UTC) if message.HasField("started_at") else None,
        ended_at=message.ended_at.ToDatetime(tzinfo=UTC) if message.HasField("ended_at") else None,
    )


def _side(message: pb.RolloutSide) -> RolloutSide:
    return RolloutSide(
        name=message.name,
        sequences=message.sequences,
        steps=message.steps,
        draft_tokens=message.draft_tokens,
        accepted_tokens=message.accepted_tokens,
    )
