"""The drafters of a verifier: how they come, change places and go while requests run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from drafter_pool.announcing.announcement_rules import AnnouncementRules, check_announcer
from drafter_pool.announcing.drafter_fields import is_local, read_name, read_service_address
from drafter_pool.announcing.heartbeats import Heartbeats
from drafter_pool.changes.model_replacement import ModelReplacements
from drafter_pool.changes.pool_changes import PoolChanges
from drafter_pool.changes.pool_operations import PoolOperations
from drafter_pool.drafter.clocks import DrafterClocks
from drafter_pool.drafter.contact import ready
from drafter_pool.drafter.draft_messages import Dropped
from drafter_pool.drafter.drafter_stats import LinkStats
from drafter_pool.drafter.pooled_drafter import MemberOwner, PoolMember
from drafter_pool.drafter.proposal_source import ProposalFault, ProposalSink, ProposalSource, SequenceProposal
from drafter_pool.drafter.service_drafter import Connect, DrafterLink
from drafter_pool.drafter.speculated_request import SpeculatedRequest
from drafter_pool.drafter.standings import DrafterStandings
from drafter_pool.routing.description import describe
from drafter_pool.routing.drafter_choice import DrafterChoice
from drafter_pool.routing.drafting import Drafting
from drafter_pool.routing.pool_counts import PoolCounts
from drafter_pool.routing.roster import Roster, check_address
from draftwire.v1.drafter_pool_service_pb2 import Drafter, Rollout
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.verdict_pb2 import Verdict
from service_runtime.errors import invalid_field, shutting_down
from service_runtime.process.logs import get_logger
from service_runtime.process.tasks import BackgroundTasks
from service_runtime.security.caller import Caller
from speculative_engine.engine.step_result import SequenceOutcome, StepResult

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes of the pool."""

    max_tree_nodes: int
    """Most live nodes of one drafter in a sequence's tree."""
    max_drafters: int = 64
    """Most drafters at once; more are refused."""
    drafters_per_request: int = 1
    """How many drafters draft for a request at once unless it says."""


class LocalDrafters(Protocol):
    """Drafters in the verifier's own process, by addresses of a form of their own."""

    def read(self, field: str, address: str) -> str:
        """The address of a request's field in its one form. Raises ServiceError."""

    def make(self, name: str, address: str, owner: MemberOwner) -> PoolMember:
        """The member of the pool that an address in its one form names."""


class DrafterPool(ProposalSource):
    """What the service and the verifier call; used in the event loop only.

    `Roster` knows the drafters, `Drafting` who drafts for which request, `PoolChanges` how their sequences move.
    """

    def __init__(
        self,
        sink: ProposalSink,
        identity: PeerInfo,
        connect: Callable[[str], Connect],
        tasks: BackgroundTasks,
        limits: PoolLimits,
        rng: random.Random | None = None,
        trusted: Collection[str] = (),
        announcements: AnnouncementRules | None = None,
        local: LocalDrafters | None = None,
        clocks: DrafterClocks | None = None,
    ):
        """trusted: addresses of drafters that are trusted whoever attaches them. announcements: which are heeded; None
        heeds all. local: makes those that need no service; None has none. clocks: None for the machine's."""
        self._sink = sink
        self._local = local
        self._identity = identity
        self._connect = connect
        self._tasks = tasks
        self._trusted = frozenset(trusted)
        self._announcements = announcements if announcements is not None else AnnouncementRules()
        self._clocks = clocks if clocks is not None else DrafterClocks()
        self._standings = DrafterStandings(self._clocks)
        self._choice = DrafterChoice(rng if rng is not None else random.Random())
        self._roster = Roster(sink, tasks, limits.max_drafters)
        self._drafting = Drafting(sink, self._roster, self._choice, limits.max_tree_nodes, limits.drafters_per_request)
        self._operations = PoolOperations(tasks)
        self._changes = PoolChanges(
            self._roster,
            self._drafting,
            self._choice,
            self._operations,
            lambda address: self.attach(address, ""),
            self._dismiss,
            self._read_address,
        )
        self._rollouts = self._changes.rollouts
        self._heartbeats = Heartbeats(self._fell_silent)
        self._replacements = ModelReplacements(
            self._roster, self._drafting, self._operations, tasks, self._link, self._model_replaced
        )
        self._ending = False
        self._changed = asyncio.Event()
        self.version = 0
        """Number of state changes so far."""

    # Requests

    def check(self, drafter_names: Sequence[str], *, draws: bool = False) -> None:
        """Raise ServiceError if a request names a drafter that is not attached or, where the rule is that of rejection
        (`draws`), may not or cannot draft by it."""
        for index, name in enumerate(drafter_names):
            link = self._roster.named(name)
            if draws and not link.draws:
                field = "speculation.drafter" if len(drafter_names) == 1 else f"speculation.drafter_names[{index}]"
                why = "cannot say what its tokens are drawn from" if link.trusted else "is not trusted"
                raise invalid_field(field, f"{name!r} {why}, as the rule of rejection needs")

    def admit(self, request: SpeculatedRequest) -> None:
        """Draft for a request from now on, if it wants and drafters are ready."""
        self._drafting.admit(request)

    def release(self, request: SpeculatedRequest) -> None:
        """Stop drafting for a request."""
        self._drafting.release(request)
        self._rollouts.forget(request.sequence_id)

    def send_verdicts(self, verdicts: list[Verdict]) -> None:
        """Tell the drafters what a step committed."""
        for link in self._roster:
            link.send_verdicts(verdicts)

    def count(self, outcome: SequenceOutcome, *, lossless: bool = True) -> None:
        """Count a step's verified and accepted draft tokens; apart from the others, if the request's rule of acceptance
        is not lossless: a roll-out compares like with like."""
        for source, nodes in outcome.drafted.items():
            link = self._roster.find(source)
            if link is not None:
                accepted = outcome.sources.count(source)
                link.stats.count(nodes, accepted, lossless=lossless)
                link.speed.count_accepted(accepted)
                link.credit.verified(nodes, accepted)
        if lossless:
            self._rollouts.count(outcome)

    def count_step(self, result: StepResult) -> None:
        """Know what a step took, before its outcomes are counted, what reading each drafter's proposals took, and what
        the drafters in the engine's thread did for it. They draft once a step, however fast they are, so it is the
        step's time that their accepted tokens are set against."""
        for member in self._roster:
            member.credit.price(result.plain_seconds, result.node_tokens)
        for source, seconds in result.reading.items():
            link = self._roster.find(source)
            if link is not None:
                link.credit.read(seconds)
        for source, seconds in result.drafting.items():
            link = self._roster.find(source)
            if link is not None:
                link.count_step(seconds, result.seconds)

    def count_stale(self, source: str, nodes: int) -> None:
        """Count nodes that came too late."""
        link = self._roster.find(source)
        if link is not None:
            link.stats.stale_nodes += nodes

    def refuse(self, fault: ProposalFault) -> None:
        """A drafter sent a proposal that contradicts itself: another one drafts for that sequence, or none."""
        link = self._roster.find(fault.source)
        if link is not None and link.refuse(fault.sequence_id, fault.epoch, fault.error):
            self._drafting.avoid(fault.sequence_id, link)

    # Drafters

    async def attach(
        self, address: str, name: str, labels: Mapping[str, str] | None = None, trusted: bool | None = None
    ) -> PoolMember:
        """Attach a drafter and wait until it is ready. Raises ServiceError; then it is not attached."""
        known = set(self._roster.members)
        link = self.add(address, name, labels, trusted)
        self._heartbeats.welcome(link.name)
        try:
            await ready(link)
        finally:
            if not link.ready and link not in known:
                self._remove(link)
        return link

    def add(
        self, address: str, name: str = "", labels: Mapping[str, str] | None = None, trusted: bool | None = None
    ) -> PoolMember:
        """Attach a drafter without waiting; the same name and address again give the same one.

        trusted: None leaves it as it is.

        Raises ServiceError: the address has no form this verifier serves, the name stands for another address, or
        there are as many drafters as there may be.
        """
        link = self._enter(self._read_address("address", address), read_name("name", name), labels)
        link.given = True
        if trusted is not None:
            self._trust(link, trusted)
        return link

    async def detach(self, name: str) -> Drafter:
        """See PoolChanges."""
        return await self._changes.detach(name)

    async def swap(self, old_name: str, new_name: str, request_id: str = "") -> tuple[PoolMember, int]:
        """See PoolChanges."""
        return await self._changes.swap(old_name, new_name, request_id)

    async def start_rollout(self, old_name: str, new_name: str, share: float) -> Rollout:
        """See PoolChanges."""
        return await self._changes.start_rollout(old_name, new_name, share)

    async def finish_rollout(self, new_name: str, promote: bool) -> Rollout:
        """See PoolChanges."""
        return await self._changes.finish_rollout(new_name, promote)

    def register(
        self,
        address: str,
        name: str,
        leaving: bool,
        labels: Mapping[str, str] | None = None,
        caller: Caller | None = None,
    ) -> bool:
        """A drafter announces itself, sends its heartbeat, or takes its leave. caller: who says so, where tokens tell.

        Returns whether that changes anything, as a heartbeat does not. Raises ServiceError.
        """
        address = read_service_address("address", address)
        self._announcements.check(address)
        name = read_name("name", name) or address
        link = self._roster.get(name)
        if link is not None:
            check_address(link, address)
            check_announcer(link, caller, leaving=leaving)
        if leaving:
            self._heartbeats.stop(name)
            if link is not None:
                self._tasks.spawn(self._changes.leave(link, self._remove), name=f"leave of {name}")
            return True
        before, first = self.version, False
        if not self._heartbeats.is_dismissed(name):
            link = self._enter(address, name, labels)
            first = not link.announced
            link.announced = True
            link.announcer = link.announcer if caller is None else caller.name
        self._heartbeats.beat(name)
        return first or self.version != before

    def describe_rollouts(self) -> list[Rollout]:
        """The roll-outs under way, then the last that ended, newest first."""
        return self._rollouts.describe()

    # What it looks like

    def describe(self) -> list[Drafter]:
        """The state of all drafters, oldest first."""
        return [self.describe_one(link) for link in self._roster.members]

    def describe_one(self, link: PoolMember) -> Drafter:
        """The state of one drafter."""
        return describe(link, self._roster, self._sink)

    def link_stats(self) -> dict[str, LinkStats]:
        """What each drafter did, by name."""
        return {link.name: link.stats for link in self._roster.members}

    @property
    def counts(self) -> PoolCounts:
        """What happened to the pool."""
        return self._drafting.counts

    def drafters_of(self, sequence_id: int) -> list[str]:
        """Names of those that draft for a sequence, oldest first."""
        return [link.name for link in self._roster if link.has(sequence_id)]

    async def change_after(self, version: int) -> int:
        """Return the version of the pool's state as soon as it differs from `version`. Raises ServiceError after
        `end_watches`."""
        while self.version == version and not self._ending:
            await self._changed.wait()
        if self._ending:
            raise shutting_down()
        return self.version

    def end_watches(self) -> None:
        """End every wait for a change, present and future: one that lasts for ever would hold up a graceful stop."""
        self._ending = True
        self._changed.set()

    def shut_down(self) -> None:
        """Release all drafters."""
        self._heartbeats.shut_down()
        for link in self._roster.links:
            self._remove(link)

    # LinkOwner

    def link_changed(self, link: PoolMember) -> None:
        """See LinkOwner."""
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def link_ready(self, link: PoolMember) -> None:
        """See LinkOwner."""
        self._drafting.welcome(link)

    def link_renewed(self, link: DrafterLink, old_source: str) -> None:
        """See LinkOwner."""
        self._sink.forget(old_source)
        self._rollouts.restart(link.name)

    def link_replaced(self, link: DrafterLink, delay: float) -> None:
        """See LinkOwner."""
        self._replacements.begin(link, delay)

    def link_proposed(self, link: DrafterLink, proposals: list[SequenceProposal]) -> None:
        """See LinkOwner."""
        self._sink.propose(link.source, proposals)

    def link_rests(self, link: DrafterLink, *, rests: bool) -> None:
        """See LinkOwner."""
        self._sink.rest(link.source, rests=rests)

    def link_dropped(self, link: DrafterLink, sequence_ids: list[int], why: Dropped) -> None:
        """See LinkOwner."""
        self._drafting.dropped(link, sequence_ids, why)

    # Coming and going

    def _read_address(self, field: str, address: str) -> str:
        """The address of a request's field in its one form. Raises ServiceError."""
        if self._local is not None and is_local(address):
            return self._local.read(field, address)
        return read_service_address(field, address)

    def _member(self, name: str, address: str) -> PoolMember:
        if self._local is not None and is_local(address):
            return self._local.make(name, address, self)
        return self._link(name, address)

    def _link(self, name: str, address: str) -> DrafterLink:
        standing = self._standings.of(address)
        return DrafterLink(name, address, self._connect(address), self._identity, self, standing, self._clocks)

    def _enter(self, address: str, name: str, labels: Mapping[str, str] | None) -> PoolMember:
        name = name or address
        link, new = self._roster.enter(name, address, lambda: self._member(name, address))
        relabelled = bool(labels) and link.labels != labels
        if labels and relabelled:
            link.labels = dict(labels)
            self._drafting.refill()
        if new and address in self._trusted:
            link.trusted = True
        if new or relabelled:
            self.link_changed(link)
        return link

    def _trust(self, link: PoolMember, trusted: bool) -> None:
        """Trust a drafter, or no longer: its requests with the rule of rejection then go to others."""
        if trusted != link.trusted and not is_local(link.address):
            link.trusted = trusted
            self._drafting.recheck(link)
            self.link_changed(link)

    def _dismiss(self, link: PoolMember) -> Drafter:
        """Release a drafter that was told to go."""
        self._heartbeats.dismiss(link.name)
        return self._remove(link)

    def _remove(self, link: PoolMember) -> Drafter:
        described = self.describe_one(link)
        if self._roster.end(link):
            self._drafting.abandon(link)
            self._rollouts.removed(link.name)
            self.link_changed(link)
        return described

    def _fell_silent(self, name: str) -> None:
        """A drafter's heartbeats have stopped. One that somebody attached is not theirs to remove."""
        link = self._roster.get(name)
        if link is None:
            return
        log.warning("heartbeat stayed out", drafter=name)
        if link.given:
            link.announced, link.announcer = False, None
            self.link_changed(link)
        else:
            self._tasks.spawn(self._changes.leave(link, self._remove), name=f"expiry of {name}")

    def _model_replaced(self, link: DrafterLink) -> None:
        """A drafter has another model, and a link to it."""
        self._rollouts.restart(link.name)
        self.link_changed(link)
