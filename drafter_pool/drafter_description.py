"""A drafter as ListDrafters and WatchDrafters tell it."""

from __future__ import annotations

from drafter_pool.pool_member import PoolMember
from drafter_pool.proposal_source import ProposalSink
from drafter_pool.roster import Roster
from draftwire.v1.drafter_pool_service_pb2 import Drafter
from service_runtime.duration import duration


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
