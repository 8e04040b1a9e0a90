"""A drafter service and its model, as the service reports them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from draftwire._types.from_message import read
from draftwire._types.model import ModelInfo
from draftwire._types.planner_status import AcceptanceClass
from draftwire._types.step_times import StepCost, StepTimes
from draftwire.errors import DraftwireError
from draftwire.v1 import drafter_service_pb2 as pb

ModelLoadState = Literal["loading", "serving", "failed", "unknown"]
"""State of a model load: the model is being read and tested, is served, or could not be loaded, in which case the
previous model is still served."""


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One change of a drafter service's model."""

    model: str
    """Directory on the drafter's machine, or a hub id."""
    request_id: str
    """The caller's id for the change."""
    state: ModelLoadState
    """State of the load."""
    error: DraftwireError | None
    """Error of a failed load, else None."""
    started_at: datetime | None
    """Time at which the load began (UTC)."""


@dataclass(frozen=True, slots=True)
class VerifierShare:
    """One verifier's share of a drafter service. Counts restart after it has closed all of its streams."""

    name: str
    """Name of the verifier's token, or its host if the drafter service requires no token."""
    weight: float
    """Weight of its share."""
    streams: int
    """The verifier's open streams, which divide its share."""
    open_sequences: int
    """Open sequences on its streams."""
    waiting_sequences: int
    """Open sequences that wait for KV slots; nothing is drafted for them meanwhile."""
    used_slots: int
    """KV slots that hold its committed tokens."""
    rows: int
    """Rows computed for it by the draft model: committed tokens and nodes."""
    drafted_nodes: int
    """Nodes proposed to it."""
    preemptions: int
    """Number of times that one of its sequences lost its KV slots to others, to be recomputed later."""


@dataclass(frozen=True, slots=True)
class DrafterServiceInfo:
    """The model, state and load of a drafter service."""

    model: ModelInfo
    """The model that new streams get."""
    build: str
    """Build of the service."""
    last_load: ModelLoad | None
    """The last change of its model, if any."""
    streams: int
    """Open streams of verifiers."""
    open_sequences: int
    """Open sequences on all streams."""
    used_slots: int
    """KV slots in use."""
    total_slots: int
    """Total number of KV slots."""
    times: StepTimes
    """Time of the drafting steps by phase, for the model that new streams get; reset when the model changes."""
    step_costs: list[StepCost]
    """c(n) of the model that new streams get, by rows."""
    classes: list[AcceptanceClass]
    """Acceptance of that model's nodes, judged by the tokens that verifiers have committed."""
    drafted_nodes: int
    """Nodes proposed by the service."""
    verifiers: list[VerifierShare]
    """Verifiers with an open stream, with their shares; only the caller's own if its token lacks the administrator
    role."""


def read_drafter_service_info(message: pb.DrafterServiceGetModelInfoResponse) -> DrafterServiceInfo:
    """Returns a ``DrafterServiceInfo`` from the response to GetModelInfo."""
    return read(DrafterServiceInfo, message.status, message.info, message)
