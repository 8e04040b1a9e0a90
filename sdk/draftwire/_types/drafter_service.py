"""A drafter service and its model, as the service reports them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from draftwire._types.model import ModelInfo, read_model_info
from draftwire._types.planner_status import AcceptanceClass, read_classes
from draftwire._types.step_times import StepCost, StepTimes, read_step_costs, read_step_times
from draftwire.errors import DraftwireError, from_status
from draftwire.v1 import drafter_service_pb2 as pb

ModelLoadState = Literal["loading", "serving", "failed", "unknown"]
"""State of a model load: the model is being read and tested, is served, or could not be loaded, in which case the
previous model is still served."""

_STATES: dict[int, ModelLoadState] = {
    pb.MODEL_LOAD_STATE_LOADING: "loading",
    pb.MODEL_LOAD_STATE_SERVING: "serving",
    pb.MODEL_LOAD_STATE_FAILED: "failed",
}


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


def read_model_load(message: pb.ModelLoad) -> ModelLoad:
    """Returns a ``ModelLoad`` from its message."""
    return ModelLoad(
        model=message.model,
        request_id=message.request_id,
        state=_STATES.get(message.state, "unknown"),
        error=from_status(message.error) if message.HasField("error") else None,
        started_at=message.started_at.ToDatetime(tzinfo=UTC) if message.HasField("started_at") else None,
    )


def read_drafter_service_info(message: pb.DrafterServiceGetModelInfoResponse) -> DrafterServiceInfo:
    """Returns a ``DrafterServiceInfo`` from the answer to GetModelInfo."""
    status = message.status
    return DrafterServiceInfo(
        model=read_model_info(message.info.model),
        build=message.info.build,
        last_load=read_model_load(message.last_load) if message.HasField("last_load") else None,
        streams=status.streams,
        open_sequences=status.open_sequences,
        used_slots=status.used_slots,
        total_slots=status.total_slots,
        times=read_step_times(status.times),
        step_costs=read_step_costs(status.step_costs),
        classes=read_classes(status.classes),
        drafted_nodes=status.drafted_nodes,
        verifiers=[
            VerifierShare(
                name=each.name,
                weight=each.weight,
                streams=each.streams,
                open_sequences=each.open_sequences,
                waiting_sequences=each.waiting_sequences,
                used_slots=each.used_slots,
                rows=each.rows,
                drafted_nodes=each.drafted_nodes,
                preemptions=each.preemptions,
            )
            for each in status.verifiers
        ],
    )
