"""Protobuf descriptions of drafters and of the planner's statistics about them."""

from __future__ import annotations

from draftwire.v1.calibration_pb2 import AcceptanceClass, Calibration
from draftwire.v1.drafter_pool_service_pb2 import Drafter as DrafterMessage
from draftwire_core.engine.planning.planner import Planner
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.drafter.source import RESERVED, drafter_of
from draftwire_core.runtime.duration import duration


def describe(drafter: PooledDrafter, sequences: int, response_seconds: float | None) -> DrafterMessage:
    """Returns the state of one drafter. sequences: number of open sequences under its name. response_seconds: time from
    a verdict to its first answer; None while unknown."""
    described = DrafterMessage(
        name=drafter.name,
        address=drafter.address,
        state=drafter.state,
        sequences=sequences,
        draft_tokens=drafter.stats.draft_tokens,
        accepted_tokens=drafter.stats.accepted_tokens,
        lossy_draft_tokens=drafter.stats.lossy_draft_tokens,
        lossy_accepted_tokens=drafter.stats.lossy_accepted_tokens,
        trusted=drafter.trusted,
        stale_nodes=drafter.stats.stale_nodes,
        last_error=drafter.last_error,
        announced=drafter.announced,
        labels=drafter.labels,
        accepted_per_second=drafter.speed.accepted_per_second,
        step_time=duration(drafter.stats.step_seconds),
        resting=drafter.pause_policy.paused,
        learning=drafter.learning,
    )
    if response_seconds is not None:
        described.response_time.CopyFrom(duration(response_seconds))
    described.attached_at.FromNanoseconds(round(drafter.attached_at * 1e9))
    if drafter.model is not None:
        described.model.CopyFrom(drafter.model)
    return described


def calibrations(planner: Planner) -> list[Calibration]:
    """Returns the planner's calibration of each drafter of the pool. May be called while another thread adds and
    removes drafters."""
    timings = planner.timings.copy()
    found = []
    for source, model in planner.models.copy().items():
        if drafter_of(source) in RESERVED:
            continue
        calibration = Calibration(
            drafter=drafter_of(source),
            classes=[AcceptanceClass(**each._asdict()) for each in model.classes()],
            first_acceptance=model.next_probability(),
        )
        if source in timings:
            calibration.response_time.CopyFrom(duration(timings[source].response))
            calibration.proposal_interval.CopyFrom(duration(timings[source].interval))
        found.append(calibration)
    return found
