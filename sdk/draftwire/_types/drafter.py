"""The drafters of a verifier, as it reports them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Literal

from draftwire._types.from_message import From
from draftwire._types.learning import Learning
from draftwire._types.model import ModelInfo
from draftwire.errors import DraftwireError

DrafterState = Literal["connecting", "ready", "draining", "unreachable", "suspended", "incompatible", "unknown"]
"""State of a drafter: ``"connecting"`` (handshake in progress), ``"ready"`` (it drafts), ``"draining"`` (no new
sequences; released once its last one has moved), ``"unreachable"`` (connection lost; the verifier keeps trying),
``"suspended"`` (too many protocol violations; no sequences for a while), ``"incompatible"`` (it cannot draft for this
target, for example because of another tokenizer; ``last_error`` says why)."""


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
    step_seconds: Annotated[float | None, From("step_time")]
    """Smoothed time of one of its drafting steps, in seconds; None before the first."""
    response_seconds: Annotated[float | None, From("response_time")]
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
    learning: Learning | None = None
    """The last report of the learner that trains its draft model; None if none learns."""

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
