"""The drafters of a verifier: how they come, change places and go while requests run."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from drafter_pool.announcing.announcement_rules import AnnouncementRules
from drafter_pool.changes.drafter_factory import DrafterFactory, LocalDrafterFactory
from drafter_pool.changes.membership import Membership
from drafter_pool.changes.model_replacement import ModelReplacements
from drafter_pool.changes.pool_changes import PoolChanges
from drafter_pool.changes.pool_operations import PoolOperations
from drafter_pool.changes.rollouts import Rollouts
from drafter_pool.drafter.clocks import DrafterClocks
from drafter_pool.drafter.draft_messages import Dropped
from drafter_pool.drafter.pooled_drafter import DrafterEvents, PooledDrafter
from drafter_pool.drafter.proposal_sink import ProposalFault, ProposalSink
from drafter_pool.drafter.service_drafter import Connect
from drafter_pool.drafter.speculated_request import SpeculatedRequest
from drafter_pool.routing.drafter_choice import DrafterChoice
from drafter_pool.routing.drafting import Drafting
from drafter_pool.routing.pool_watch import PoolWatch
from drafter_pool.routing.roster import Roster
from draftwire.v1.drafter_pool_service_pb2 import Drafter as DrafterMessage
from draftwire.v1.model_info_pb2 import PeerInfo
from service_runtime.errors import invalid_field
from service_runtime.process.tasks import BackgroundTasks
from speculative_engine.engine.step_result import SequenceOutcome, StepResult


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes of the pool."""

    max_tree_nodes: int
    """Most live nodes of one drafter in a sequence's tree."""
    max_drafters: int = 64
    """Most drafters at once; more are refused."""
    drafters_per_request: int = 1
    """Number of drafters that draft for a request at once unless it asks for another number."""


class DrafterPool(DrafterEvents):
    """The pool as the verifier and its service use it: requests go in here. Used in the event loop only."""

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
        local: LocalDrafterFactory | None = None,
        clocks: DrafterClocks | None = None,
    ):
        """trusted: addresses of drafters that are trusted whoever attaches them. announcements: which are heeded; None
        heeds all. local: makes those that need no service; None has none. clocks: None for the machine's."""
        clocks = clocks if clocks is not None else DrafterClocks()
        choice = DrafterChoice(rng if rng is not None else random.Random())
        operations = PoolOperations(tasks)
        factory = DrafterFactory(sink, self, identity, connect, local, clocks)
        self.watch = PoolWatch()
        """The version of what `describe` returns."""
        self.roster = Roster(sink, tasks, limits.max_drafters)
        """The drafters by name."""
        self.drafting = Drafting(sink, self.roster, choice, limits.max_tree_nodes, limits.drafters_per_request)
        """The assignment of drafters to requests."""
        self.rollouts = Rollouts(self.roster, self.drafting)
        """The rollouts under way, and the last that ended."""
        self.membership = Membership(
            self.roster,
            self.drafting,
            self.rollouts,
            operations,
            factory,
            self.watch,
            tasks,
            trusted,
            announcements if announcements is not None else AnnouncementRules(),
        )
        """Attaches and registers drafters."""
        self.changes = PoolChanges(self.roster, self.drafting, self.rollouts, operations, self.membership)
        """Detaches, swaps and rolls out drafters."""
        self._replacements = ModelReplacements(
            self.roster, self.drafting, operations, self.rollouts, factory, self.watch, tasks
        )

    def check(self, drafter_names: Sequence[str], *, draws: bool = False) -> None:
        """Raise ServiceError if a request names a drafter that is not attached or, where the rule is that of rejection
        (`draws`), may not or cannot draft by it."""
        for index, name in enumerate(drafter_names):
            drafter = self.roster.named(name)
            if draws and not drafter.draws:
                field = "speculation.drafter" if len(drafter_names) == 1 else f"speculation.drafter_names[{index}]"
                why = "cannot say what its tokens are drawn from" if drafter.trusted else "is not trusted"
                raise invalid_field(field, f"{name!r} {why}, as the rule of rejection needs")

    def admit(self, request: SpeculatedRequest) -> None:
        """Draft for a request from now on, if it wants and drafters are ready."""
        self.drafting.admit(request)

    def release(self, request: SpeculatedRequest) -> None:
        """Stop drafting for a request."""
        self.drafting.release(request)
        self.rollouts.forget(request.sequence_id)

    def send_verdicts(self, outcomes: Sequence[SequenceOutcome]) -> None:
        """Send the drafters what a step committed. outcomes: of sequences that go on."""
        for drafter in self.roster:
            drafter.send_verdicts(outcomes)

    def count(self, outcome: SequenceOutcome, *, lossless: bool = True) -> None:
        """Count a step's verified and accepted draft tokens. lossless: whether the request's rule of acceptance is;
        other tokens are counted apart, and no rollout is judged by them."""
        for source, nodes in outcome.drafted.items():
            drafter = self.roster.find(source)
            if drafter is not None:
                accepted = outcome.sources.count(source)
                drafter.stats.count(nodes, accepted, lossless=lossless)
                drafter.speed.count_accepted(accepted)
                drafter.credit.verified(nodes, accepted)
        if lossless:
            for rollout in self.rollouts.count(outcome):
                self.changes.withdraw_worse(rollout)

    def count_step(self, result: StepResult) -> None:
        """Count the times of a step, before its outcomes are counted: the step's own, those of reading each drafter's
        proposals, and those of drafting in the engine's thread. Drafters there draft once a step, however fast they
        are, so their accepted tokens are set against the step's time."""
        for drafter in self.roster:
            drafter.credit.price(result.plain_seconds, result.node_tokens)
        for source, seconds in result.reading.items():
            reader = self.roster.find(source)
            if reader is not None:
                reader.credit.read(seconds)
        for source, seconds in result.drafting.items():
            local = self.roster.find(source)
            if local is not None:
                local.count_step(seconds, result.seconds)

    def count_stale(self, source: str, nodes: int) -> None:
        """Count nodes that came too late."""
        drafter = self.roster.find(source)
        if drafter is not None:
            drafter.stats.stale_nodes += nodes

    def refuse(self, fault: ProposalFault) -> None:
        """Refuse a proposal that contradicts itself: another drafter drafts for that sequence, or none."""
        drafter = self.roster.find(fault.source)
        if drafter is not None and drafter.refuse(fault.sequence_id, fault.epoch, fault.error):
            self.drafting.avoid(fault.sequence_id, drafter)

    def describe(self) -> list[DrafterMessage]:
        """The state of all drafters, oldest first."""
        return [self.roster.describe(drafter) for drafter in self.roster.members]

    def drafter_changed(self, drafter: PooledDrafter) -> None:
        """Wake those who watch the pool."""
        self.watch.notify()

    def drafter_ready(self, drafter: PooledDrafter) -> None:
        """Give requests to a drafter whose connection is new."""
        self.drafting.welcome(drafter)

    def drafter_renewed(self, drafter: PooledDrafter) -> None:
        """Begin the comparison of a drafter in a rollout again, since its model is another one."""
        self.rollouts.restart(drafter.name)

    def drafter_replaced(self, drafter: PooledDrafter, delay: float) -> None:
        """Follow a drafter to its new model."""
        self._replacements.begin(drafter, delay)

    def drafter_dropped(self, drafter: PooledDrafter, sequence_ids: Sequence[int], why: Dropped) -> None:
        """Give sequences that a drafter lost to others."""
        self.drafting.dropped(drafter, sequence_ids, why)
