"""What a verifier tells of its drafters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from draftwire._types.model import ModelInfo, read_model_info
from draftwire.errors import DraftwireError, from_status
from draftwire.v1 import drafter_pool_service_pb2 as pb

DrafterState = Literal["connecting", "ready", "draining", "unreachable", "suspended", "unknown"]
"""Where a drafter stands: ``"connecting"`` (handshake under way), ``"ready"`` (it drafts), ``"draining"`` (no new
sequences; released when its last one has moved), ``"unreachable"`` (connection lost; the verifier keeps trying),
``"suspended"`` (it broke the protocol too often and gets no sequences for a while)."""

_STATES: dict[int, DrafterState] = {
    pb.DRAFTER_STATE_CONNECTING: "connecting",
    pb.DRAFTER_STATE_READY: "ready",
    pb.DRAFTER_STATE_DRAINING: "draining",
    pb.DRAFTER_STATE_UNREACHABLE: "unreachable",
    pb.DRAFTER_STATE_SUSPENDED: "suspended",
}


@dataclass(frozen=True, slots=True)
class Drafter:
    """One drafter of a verifier's pool."""

    name: str
    """Its name in the pool."""
    address: str
    """Its address."""
    state: DrafterState
    """Where it stands."""
    model: ModelInfo | None
    """Its model; None before the first handshake, and for one that has none."""
    sequences: int
    """Sequences that use it now."""
    draft_tokens: int
    """Draft tokens verified since it was attached."""
    accepted_tokens: int
    """Draft tokens accepted since it was attached."""
    stale_nodes: int
    """Proposed nodes that came too late to be of use."""
    step_seconds: float | None
    """Smoothed time of one of its drafting steps, in seconds; None before the first."""
    response_seconds: float | None
    """Smoothed time from a verdict to the first proposal that builds on it, in seconds; None before the first."""
    attached_at: datetime | None
    """When it was attached (UTC)."""
    last_error: DraftwireError | None
    """The last fault, when there was one."""
    announced: bool
    """True when the drafter announced itself."""
    labels: dict[str, str]
    """What it is good for, by the words of whoever attached it."""
    accepted_per_second: float
    """Draft tokens accepted per second of its drafting time, lately: what the verifier chooses by."""
    trusted: bool = False
    """Whether it may draft for requests with the rule of rejection; drafters in the verifier always may."""
    lossy_draft_tokens: int = 0
    """As ``draft_tokens``, for requests whose rule of acceptance is not lossless; not counted there."""
    lossy_accepted_tokens: int = 0
    """As ``accepted_tokens``, for the same requests."""
    resting: bool = False
    """Whether it is told nothing for now, as it brings less than that costs; of drafter services."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens since it was attached, in [0, 1]; 0.0 when nothing was verified."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0


DrafterList = list[Drafter]
"""The drafters of a pool, oldest first."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A swap that is done."""

    drafter: Drafter
    """The drafter that took over."""
    moved_sequences: int
    """Sequences that moved while running."""


def read_drafter(message: pb.Drafter) -> Drafter:
    """Return a ``Drafter`` from its message."""
    return Drafter(
        name=message.name,
        address=message.address,
        state=_STATES.get(message.state, "unknown"),
        model=read_model_info(message.model) if message.HasField("model") else None,
        sequences=message.sequences,
        draft_tokens=message.draft_tokens,
        accepted_tokens=message.accepted_tokens,
        stale_nodes=message.stale_nodes,
        step_seconds=message.step_time.ToTimedelta().total_seconds() if message.HasField("step_time") else None,
        response_seconds=(
            message.response_time.ToTimedelta().total_seconds() if message.HasField("response_time") else None
        ),
        attached_at=message.attached_at.ToDatetime(tzinfo=UTC) if message.HasField("attached_at") else None,
        last_error=from_status(message.last_error) if message.HasField("last_error") else None,
        announced=message.announced,
        labels=dict(message.labels),
        accepted_per_second=message.accepted_per_second,
        trusted=message.trusted,
        lossy_draft_tokens=message.lossy_draft_tokens,
        lossy_accepted_tokens=message.lossy_accepted_tokens,
        resting=message.resting,
    )


def read_drafters(messages: Iterable[pb.Drafter]) -> list[Drafter]:
    """Return the drafters of a pool from their messages."""
    return [read_drafter(message) for message in messages]
