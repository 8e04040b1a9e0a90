"""What a drafter service tells of itself and its model."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from draftwire._types.calibration import AcceptanceClass, read_classes
from draftwire._types.model import ModelInfo, read_model_info
from draftwire._types.step_times import StepCost, StepTimes, read_step_costs, read_step_times
from draftwire.errors import DraftwireError, from_status
from draftwire.v1 import drafter_service_pb2 as pb

ModelLoadState = Literal["loading", "serving", "failed", "unknown"]
"""How far a load is: the model is read and tested, is served, or could not be loaded and the one before it is served
still."""

_STATES: dict[int, ModelLoadState] = {
    pb.MODEL_LOAD_STATE_LOADING: "loading",
    pb.MODEL_LOAD_STATE_SERVING: "serving",
    pb.MODEL_LOAD_STATE_FAILED: "failed",
}


@dataclass(frozen=True, slots=True)
class ModelLoad:
    """One change of a drafter service's model."""

    model: str
    """Directory on the drafter's machine, or hub id."""
    request_id: str
    """The caller's name for the change."""
    state: ModelLoadState
    """How far it is."""
    error: DraftwireError | None
    """Why it failed, if it did."""
    started_at: datetime | None
    """When it began (UTC)."""


@dataclass(frozen=True, slots=True)
class VerifierShare:
    """What one verifier has of a drafter service that several share. Counts begin with its first stream of those that
    are open."""

    name: str
    """Name of its token or, where the drafter service asks for none, its host."""
    weight: float
    """Weight of its share."""
    streams: int
    """Streams that it has open; they divide its share."""
    open_sequences: int
    """Sequences that are open on them."""
    waiting_sequences: int
    """Those of them that wait for KV slots, and are not drafted for meanwhile."""
    used_slots: int
    """KV slots that hold its committed tokens."""
    rows: int
    """Rows of the draft model's steps that were for it: committed tokens and nodes."""
    drafted_nodes: int
    """Nodes proposed to it."""
    preemptions: int
    """Times a sequence of it gave up its KV slots to others, to be computed again."""


@dataclass(frozen=True, slots=True)
class DrafterServiceInfo:
    """What a drafter service serves and holds."""

    model: ModelInfo
    """The model that new streams get."""
    build: str
    """Build of the service."""
    last_load: ModelLoad | None
    """The last change of its model, when there was one."""
    streams: int
    """Streams of verifiers that are open."""
    open_sequences: int
    """Sequences that are open on them."""
    used_slots: int
    """KV slots in use."""
    total_slots: int
    """KV slots in all."""
    times: StepTimes
    """Where the time of drafting steps goes, of the model that new streams get: with another one it begins anew."""
    step_costs: list[StepCost]
    """c(n) of that model, by rows."""
    classes: list[AcceptanceClass]
    """How likely that model's nodes are, by what verifiers have committed."""
    drafted_nodes: int
    """Nodes that it has proposed."""
    verifiers: list[VerifierShare]
    """Verifiers with a stream, and what each has of it; the caller's own alone where it has a token without the role
    of administrator."""


def read_model_load(message: pb.ModelLoad) -> ModelLoad:
    """Return a ``ModelLoad`` from its message."""
    return ModelLoad(
        model=message.model,
        request_id=message.request_id,
        state=_STATES.get(message.state, "unknown"),
        error=from_status(message.error) if message.HasField("error") else None,
        started_at=message.started_at.ToDatetime(tzinfo=UTC) if message.HasField("started_at") else None,
    )


def read_drafter_service_info(message: pb.DrafterServiceGetModelInfoResponse) -> DrafterServiceInfo:
    """Return a ``DrafterServiceInfo`` from the answer to GetModelInfo."""
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
