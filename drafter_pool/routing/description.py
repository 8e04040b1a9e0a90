"""The protobuf descriptions of drafters and of what the planner has learned of them."""

from __future__ import annotations

from drafter_pool.drafter.pooled_drafter import PoolMember
from drafter_pool.drafter.proposal_source import ProposalSink
from drafter_pool.drafter.source import RESERVED, drafter_of
from drafter_pool.routing.roster import Roster
from draftwire.v1.calibration_pb2 import AcceptanceClass, Calibration
from draftwire.v1.drafter_pool_service_pb2 import Drafter
from service_runtime.duration import duration
from speculative_engine.planning.planner import Planner


def describe(link: PoolMember, roster: Roster, sink: ProposalSink) -> Drafter:
    """The state of one drafter."""
    drafter = Drafter(
        name=link.name,
        address=link.address,
        state=link.state,
        sequences=sum(each.sequences for each in {link, *roster} if each.name == link.name),
        draft_tokens=link.stats.draft_tokens,
        accepted_tokens=link.stats.accepted_tokens,
        lossy_draft_tokens=link.stats.lossy_draft_tokens,
        lossy_accepted_tokens=link.stats.lossy_accepted_tokens,
        trusted=link.trusted,
        stale_nodes=link.stats.stale_nodes,
        last_error=link.last_error,
        announced=link.announced,
        labels=link.labels,
        accepted_per_second=link.speed.accepted_per_second,
        step_time=duration(link.stats.step_seconds),
        resting=link.credit.rests,
    )
    response = sink.response_seconds(link.source)
    if response is not None:
        drafter.response_time.CopyFrom(duration(response))
    drafter.attached_at.FromNanoseconds(round(link.attached_at * 1e9))
    if link.model is not None:
        drafter.model.CopyFrom(link.model)
    return drafter


def calibrations(planner: Planner) -> list[Calibration]:
    """Of all drafters but those of single requests. May be called while another thread adds and removes drafters."""
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
