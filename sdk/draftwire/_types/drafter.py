"""The drafters of a verifier, as it reports them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from draftwire._types.model import ModelInfo, read_model_info
from draftwire.errors import DraftwireError, from_status
from draftwire.v1 import drafter_pool_service_pb2 as pb

DrafterState = Literal["connecting", "ready", "draining", "unreachable", "suspended", "incompatible", "unknown"]
"""State of a drafter: ``"connecting"`` (handshake in progress), ``"ready"`` (it drafts), ``"draining"`` (no new
sequences; released once its last one has moved), ``"unreachable"`` (connection lost; the verifier keeps trying),
``"suspended"`` (too many protocol violations; no sequences for a while), ``"incompatible"`` (it cannot draft for this
target, for example because of another tokenizer; ``last_error`` says why)."""

_STATES: dict[int, DrafterState] = {
    pb.DRAFTER_STATE_CONNECTING: "connecting",
    pb.DRAFTER_STATE_READY: "ready",
    pb.DRAFTER_STATE_DRAINING: "draining",
    pb.DRAFTER_STATE_UNREACHABLE: "unreachable",
    pb.DRAFTER_STATE_SUSPENDED: "suspended",
    pb.DRAFTER_STATE_INCOMPATIBLE: "incompatible",
}


@dataclass(frozen=True, slots=True)
class Drafter:
    """One drafter of a verifier's pool."""

    name: str
    """The drafter's name in the pool."""
    address: str
    """The drafter's address."""
    state: DrafterState
    """The drafter's state."""
    model: ModelInfo | None
    """The drafter's model; None before the first handshake, and for a drafter without a model."""
    sequences: int
    """Sequences that use it now."""
    draft_tokens: int
    """Draft tokens verified since it was attached."""
    accepted_tokens: int
    """Draft tokens accepted since it was attached."""
    stale_nodes: int
    """Proposed nodes that arrived too late to be used."""
    step_seconds: float | None
    """Smoothed time of one of its drafting steps, in seconds; None before the first."""
    response_seconds: float | None
    """Smoothed time from a verdict to the first proposal that builds on it, in seconds; None before the first."""
    attached_at: datetime | None
    """Time at which it was attached (UTC)."""
    last_error: DraftwireError | None
    """The drafter's last error, if any."""
    announced: bool
    """Whether the drafter announced itself to the verifier."""
    labels: dict[str, str]
    """Labels it was attached with, describing what it is good for."""
    accepted_per_second: float
    """Recent rate of accepted draft tokens per second of its drafting time; the verifier chooses drafters by it."""
    trusted: bool = False
    """Whether it may draft for requests with the rejection rule; drafters in the verifier always may."""
    lossy_draft_tokens: int = 0
    """Draft tokens verified for requests with a lossy acceptance rule; not included in ``draft_tokens``."""
    lossy_accepted_tokens: int = 0
    """Draft tokens accepted for requests with a lossy acceptance rule; not included in ``accepted_tokens``."""
    resting: bool = False
    """Whether the drafter service is paused and gets no verdicts, because its accepted tokens do not pay for its
    messages."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted tokens / draft tokens since it was attached, in [0, 1]; 0.0 if nothing was verified."""
        return self.accepted_tokens / self.draft_tokens if self.draft_tokens else 0.0


DrafterList = list[Drafter]
"""The drafters of a pool, oldest first."""


@dataclass(frozen=True, slots=True)
class Swap:
    """A completed swap."""

    drafter: Drafter
    """The drafter that took over."""
    moved_sequences: int
    """Running sequences that moved to it."""


def read_drafter(message: pb.Drafter) -> Drafter:
    """Returns a ``Drafter`` from its message."""
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
    """Returns the drafters of a pool from their messages."""
    return [read_drafter(message) for message in messages]
