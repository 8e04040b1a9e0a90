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
from drafter_pool.drafter.drafter_stats import DrafterStats
from drafter_pool.drafter.pooled_drafter import MemberOwner, PooledDrafter
from drafter_pool.drafter.proposal_sink import ProposalFault, ProposalSink, ProposalSource, SequenceProposal
from drafter_pool.drafter.service_drafter import Connect, ServiceDrafter
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


class DrafterFactory(Protocol):
    """Drafters in the verifier's own process, by addresses of a form of their own."""

    def read(self, field: str, address: str) -> str:
        """The address of a request's field in its one form. Raises ServiceError."""

    def make(self, name: str, address: str, owner: MemberOwner) -> PooledDrafter:
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
        local: DrafterFactory | None = None,
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
            drafter = self._roster.named(name)
            if draws and not drafter.draws:
                field = "speculation.drafter" if len(drafter_names) == 1 else f"speculation.drafter_names[{index}]"
                why = "cannot say what its tokens are drawn from" if drafter.trusted else "is not trusted"
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
        for drafter in self._roster:
            drafter.send_verdicts(verdicts)

    def count(self, outcome: SequenceOutcome, *, lossless: bool = True) -> None:
        """Count a step's verified and accepted draft tokens; apart from the others, if the request's rule of acceptance
        is not lossless: a roll-out compares like with like."""
        for source, nodes in outcome.drafted.items():
            drafter = self._roster.find(source)
            if drafter is not None:
                accepted = outcome.sources.count(source)
                drafter.stats.count(nodes, accepted, lossless=lossless)
                drafter.speed.count_accepted(accepted)
                drafter.credit.verified(nodes, accepted)
        if lossless:
            self._rollouts.count(outcome)

    def count_step(self, result: StepResult) -> None:
        """Know what a step took, before its outcomes are counted, what reading each drafter's proposals took, and what
        the drafters in the engine's thread did for it. They draft once a step, however fast they are, so it is the
        step's time that their accepted tokens are set against."""
        for member in self._roster:
            member.credit.price(result.plain_seconds, result.node_tokens)
        for source, seconds in result.reading.items():
            drafter = self._roster.find(source)
            if drafter is not None:
                drafter.credit.read(seconds)
        for source, seconds in result.drafting.items():
            drafter = self._roster.find(source)
            if drafter is not None:
                drafter.count_step(seconds, result.seconds)

    def count_stale(self, source: str, nodes: int) -> None:
        """Count nodes that came too late."""
        drafter = self._roster.find(source)
        if drafter is not None:
            drafter.stats.stale_nodes += nodes

    def refuse(self, fault: ProposalFault) -> None:
        """A drafter sent a proposal that contradicts itself: another one drafts for that sequence, or none."""
        drafter = self._roster.find(fault.source)
        if drafter is not None and drafter.refuse(fault.sequence_id, fault.epoch, fault.error):
            self._drafting.avoid(fault.sequence_id, drafter)

    # Drafters

    async def attach(
        self, address: str, name: str, labels: Mapping[str, str] | None = None, trusted: bool | None = None
    ) -> PooledDrafter:
        """Attach a drafter and wait until it is ready. Raises ServiceError; then it is not attached."""
        known = set(self._roster.members)
        drafter = self.add(address, name, labels, trusted)
        self._heartbeats.welcome(drafter.name)
        try:
            await ready(drafter)
        finally:
            if not drafter.ready and drafter not in known:
                self._remove(drafter)
        return drafter

    def add(
        self, address: str, name: str = "", labels: Mapping[str, str] | None = None, trusted: bool | None = None
    ) -> PooledDrafter:
        """Attach a drafter without waiting; the same name and address again give the same one.

        trusted: None leaves it as it is.

        Raises ServiceError: the address has no form this verifier serves, the name stands for another address, or
        there are as many drafters as there may be.
        """
        drafter = self._enter(self._read_address("address", address), read_name("name", name), labels)
        drafter.given = True
        if trusted is not None:
            self._trust(drafter, trusted)
        return drafter

    async def detach(self, name: str) -> Drafter:
        """See PoolChanges."""
        return await self._changes.detach(name)

    async def swap(self, old_name: str, new_name: str, request_id: str = "") -> tuple[PooledDrafter, int]:
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
        drafter = self._roster.get(name)
        if drafter is not None:
            check_address(drafter, address)
            check_announcer(drafter, caller, leaving=leaving)
        if leaving:
            self._heartbeats.stop(name)
            if drafter is not None:
                self._tasks.spawn(self._changes.leave(drafter, self._remove), name=f"leave of {name}")
            return True
        before, first = self.version, False
        if not self._heartbeats.is_dismissed(name):
            drafter = self._enter(address, name, labels)
            first = not drafter.announced
            drafter.announced = True
            drafter.announcer = drafter.announcer if caller is None else caller.name
        self._heartbeats.beat(name)
        return first or self.version != before

    def describe_rollouts(self) -> list[Rollout]:
        """The roll-outs under way, then the last that ended, newest first."""
        return self._rollouts.describe()

    # What it looks like

    def describe(self) -> list[Drafter]:
        """The state of all drafters, oldest first."""
        return [self.describe_one(drafter) for drafter in self._roster.members]

    def describe_one(self, drafter: PooledDrafter) -> Drafter:
        """The state of one drafter."""
        return describe(drafter, self._roster, self._sink)

    def drafter_stats(self) -> dict[str, DrafterStats]:
        """What each drafter did, by name."""
        return {drafter.name: drafter.stats for drafter in self._roster.members}

    @property
    def counts(self) -> PoolCounts:
        """What happened to the pool."""
        return self._drafting.counts

    def drafters_of(self, sequence_id: int) -> list[str]:
        """Names of those that draft for a sequence, oldest first."""
        return [drafter.name for drafter in self._roster if drafter.has(sequence_id)]

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
        for drafter in self._roster.alive:
            self._remove(drafter)

    # LinkOwner

    def drafter_changed(self, drafter: PooledDrafter) -> None:
        """See LinkOwner."""
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def drafter_ready(self, drafter: PooledDrafter) -> None:
        """See LinkOwner."""
        self._drafting.welcome(drafter)

    def drafter_renewed(self, drafter: ServiceDrafter, old_source: str) -> None:
        """See LinkOwner."""
        self._sink.forget(old_source)
        self._rollouts.restart(drafter.name)

    def drafter_replaced(self, drafter: ServiceDrafter, delay: float) -> None:
        """See LinkOwner."""
        self._replacements.begin(drafter, delay)

    def drafter_proposed(self, drafter: ServiceDrafter, proposals: list[SequenceProposal]) -> None:
        """See LinkOwner."""
        self._sink.propose(drafter.source, proposals)

    def drafter_rests(self, drafter: ServiceDrafter, *, rests: bool) -> None:
        """See LinkOwner."""
        self._sink.rest(drafter.source, rests=rests)

    def drafter_dropped(self, drafter: ServiceDrafter, sequence_ids: list[int], why: Dropped) -> None:
        """See LinkOwner."""
        self._drafting.dropped(drafter, sequence_ids, why)

    # Coming and going

    def _read_address(self, field: str, address: str) -> str:
        """The address of a request's field in its one form. Raises ServiceError."""
        if self._local is not None and is_local(address):
            return self._local.read(field, address)
        return read_service_address(field, address)

    def _member(self, name: str, address: str) -> PooledDrafter:
        if self._local is not None and is_local(address):
            return self._local.make(name, address, self)
        return self._link(name, address)

    def _link(self, name: str, address: str) -> ServiceDrafter:
        standing = self._standings.of(address)
        return ServiceDrafter(name, address, self._connect(address), self._identity, self, standing, self._clocks)

    def _enter(self, address: str, name: str, labels: Mapping[str, str] | None) -> PooledDrafter:
        name = name or address
        drafter, new = self._roster.enter(name, address, lambda: self._member(name, address))
        relabelled = bool(labels) and drafter.labels != labels
        if labels and relabelled:
            drafter.labels = dict(labels)
            self._drafting.refill()
        if new and address in self._trusted:
            drafter.trusted = True
        if new or relabelled:
            self.drafter_changed(drafter)
        return drafter

    def _trust(self, drafter: PooledDrafter, trusted: bool) -> None:
        """Trust a drafter, or no longer: its requests with the rule of rejection then go to others."""
        if trusted != drafter.trusted and not is_local(drafter.address):
            drafter.trusted = trusted
            self._drafting.recheck(drafter)
            self.drafter_changed(drafter)

    def _dismiss(self, drafter: PooledDrafter) -> Drafter:
        """Release a drafter that was told to go."""
        self._heartbeats.dismiss(drafter.name)
        return self._remove(drafter)

    def _remove(self, drafter: PooledDrafter) -> Drafter:
        described = self.describe_one(drafter)
        if self._roster.end(drafter):
            self._drafting.abandon(drafter)
            self._rollouts.removed(drafter.name)
            self.drafter_changed(drafter)
        return described

    def _fell_silent(self, name: str) -> None:
        """A drafter's heartbeats have stopped. One that somebody attached is not theirs to remove."""
        drafter = self._roster.get(name)
        if drafter is None:
            return
        log.warning("heartbeat stayed out", drafter=name)
        if drafter.given:
            drafter.announced, drafter.announcer = False, None
            self.drafter_changed(drafter)
        else:
            self._tasks.spawn(self._changes.leave(drafter, self._remove), name=f"expiry of {name}")

    def _model_replaced(self, drafter: ServiceDrafter) -> None:
        """A drafter has another model, and a drafter to it."""
        self._rollouts.restart(drafter.name)
        self.drafter_changed(drafter)
