"""The drafter pool of a verifier: drafters join, are swapped and leave while requests run."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from draftwire.v1.drafter_pool_service_pb2 import Drafter as DrafterMessage
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire_core.engine.engine.step_result import SequenceFeatures, SequenceOutcome, StepResult
from draftwire_core.pool.announcing.announcement_rules import AnnouncementRules
from draftwire_core.pool.changes.drafter_factory import DrafterFactory, LocalDrafterFactory
from draftwire_core.pool.changes.membership import Membership
from draftwire_core.pool.changes.model_replacement import ModelReplacements
from draftwire_core.pool.changes.pool_changes import PoolChanges
from draftwire_core.pool.changes.pool_operations import PoolOperations
from draftwire_core.pool.changes.rollouts import Rollouts
from draftwire_core.pool.drafter.draft_messages import Dropped
from draftwire_core.pool.drafter.features import FeatureIntake
from draftwire_core.pool.drafter.pooled_drafter import DrafterEvents, PooledDrafter
from draftwire_core.pool.drafter.proposal_sink import ProposalSink, RefusedProposal
from draftwire_core.pool.drafter.service_drafter import Connect
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest
from draftwire_core.pool.routing.drafting import Drafting
from draftwire_core.pool.routing.roster import DrafterChoice, PoolWatch, Roster
from draftwire_core.pool.standing.standings import DrafterClocks
from draftwire_core.runtime.errors import invalid_field
from draftwire_core.runtime.process.tasks import BackgroundTasks


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes of the pool."""

    max_tree_nodes: int
    """Maximum live nodes of one drafter in a sequence's tree."""
    max_drafters: int = 64
    """Maximum number of drafters at once; more are refused."""
    drafters_per_request: int = 1
    """Default number of drafters that draft for a request at once."""


class DrafterPool(DrafterEvents):
    """The pool's interface for the verifier and its service. Used in the event loop only."""

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
        intake: FeatureIntake | None = None,
    ):
        """Builds the pool's parts, without drafters.

        trusted: addresses whose drafters are trusted, regardless of the caller that attaches them. announcements: the
        rules for accepting announcements; None accepts all. local: makes drafters that run in the verifier; None
        disables them. clocks: None for the machine's clocks. intake: makes the features that drafters read; None
        if the verifier has none.
        """
        clocks = clocks if clocks is not None else DrafterClocks()
        choice = DrafterChoice(rng if rng is not None else random.Random())
        operations = PoolOperations(tasks)
        factory = DrafterFactory(sink, self, identity, connect, local, clocks, intake)
        self.watch = PoolWatch()
        """The version number of the result of `describe`."""
        self.roster = Roster(sink, tasks, limits.max_drafters)
        """The drafters by name."""
        self.drafting = Drafting(sink, self.roster, choice, limits.max_tree_nodes, limits.drafters_per_request)
        """The assignment of drafters to requests."""
        self.rollouts = Rollouts(self.roster, self.drafting)
        """The rollouts in progress, and the most recently ended ones."""
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
        """Raises ServiceError if a request names a drafter that is not attached or, under the rejection rule (`draws`),
        one that is not trusted or cannot report its draft distributions."""
        for index, name in enumerate(drafter_names):
            drafter = self.roster.named(name)
            if draws and not drafter.draws:
                field = "speculation.drafter" if len(drafter_names) == 1 else f"speculation.drafter_names[{index}]"
                why = (
                    "does not report the distributions its tokens are drawn from"
                    if drafter.trusted
                    else "is not trusted"
                )
                raise invalid_field(field, f"{name!r} {why}, which the rejection rule requires")

    def admit(self, request: SpeculatedRequest) -> None:
        """Starts drafting for a request, if it allows drafting and drafters are ready."""
        self.drafting.admit(request)

    def release(self, request: SpeculatedRequest) -> None:
        """Stops drafting for a request."""
        self.drafting.release(request)
        self.rollouts.forget(request.sequence_id)

    @property
    def resting(self) -> set[str]:
        """Sources of the drafters that are paused."""
        return {drafter.source for drafter in self.roster if drafter.pause_policy.paused}

    def send_verdicts(self, outcomes: Sequence[SequenceOutcome]) -> None:
        """Sends the drafters the verdicts of a step. outcomes: those of sequences that continue."""
        resting = sum(drafter.sequences > 0 and drafter.pause_policy.paused for drafter in self.roster)
        for drafter in self.roster:
            drafter.pause_policy.sharing = max(1, resting)
            drafter.send_verdicts(outcomes)

    def step_begun(self, step_seconds: float) -> None:
        """Lets the drafters gather their nodes during a step. step_seconds: its expected duration."""
        for drafter in self.roster:
            drafter.step_begun(step_seconds)

    def send_features(self, features: Sequence[SequenceFeatures]) -> None:
        """Sends the drafters the features of a step, before its verdicts: they can go on as soon as they have these."""
        by_source: dict[str, list[SequenceFeatures]] = {}
        for each in features:
            by_source.setdefault(each.source, []).append(each)
        for source, those in by_source.items():
            drafter = self.roster.find(source)
            if drafter is not None:
                drafter.send_features(those)

    def count(self, outcome: SequenceOutcome, *, lossless: bool = True) -> None:
        """Counts a step's verified and accepted draft tokens. lossless: whether the request's acceptance rule is
        lossless. Tokens of lossy requests are counted separately and do not affect rollouts."""
        for source, nodes in outcome.drafted.items():
            drafter = self.roster.find(source)
            if drafter is not None:
                accepted = outcome.sources.count(source)
                drafter.stats.count(nodes, accepted, lossless=lossless)
                drafter.speed.count_accepted(accepted)
                drafter.pause_policy.verified(nodes, accepted)
        if lossless:
            for rollout in self.rollouts.count(outcome):
                self.changes.withdraw_worse(rollout)

    def count_step(self, result: StepResult) -> None:
        """Counts the times of a step: the step itself, merging each drafter's proposals, and drafting in the engine's
        thread. Must be called before the step's outcomes are counted.

        Local drafters draft once a step, however fast they are, so their accepted tokens count per second of step time.
        """
        for drafter in self.roster:
            drafter.pause_policy.price(result.plain_seconds, result.node_tokens)
            drafter.pause_policy.interference.observe(result.slowness, busy=drafter.busy)
        for source, seconds in result.feature_seconds.items():
            reader = self.roster.find(source)
            if reader is not None:
                reader.charge_features(seconds)
        for source, merged in result.merged.items():
            drafter_outside = self.roster.find(source)
            if drafter_outside is not None:
                drafter_outside.pause_policy.merged(merged.seconds, merged.nodes)
        for source, seconds in result.drafting.items():
            local = self.roster.find(source)
            if local is not None:
                local.count_step(seconds, result.seconds)
                self.rollouts.count_drafting(local.name, seconds)

    def count_stale(self, source: str, nodes: int) -> None:
        """Counts nodes that arrived too late."""
        drafter = self.roster.find(source)
        if drafter is not None:
            drafter.stats.stale_nodes += nodes

    def refuse(self, fault: RefusedProposal) -> None:
        """Refuses an inconsistent proposal; the sequence continues with another drafter or with none."""
        drafter = self.roster.find(fault.source)
        if drafter is not None and drafter.refuse(fault.sequence_id, fault.epoch, fault.error):
            self.drafting.avoid(fault.sequence_id, drafter)

    def describe(self) -> list[DrafterMessage]:
        """Returns the state of all drafters, oldest first."""
        return [self.roster.describe(drafter) for drafter in self.roster.members]

    def drafter_changed(self, drafter: PooledDrafter) -> None:
        """Wakes the watchers of the pool."""
        self.watch.notify()

    def drafter_ready(self, drafter: PooledDrafter) -> None:
        """Assigns requests to a drafter that has just connected."""
        self.drafting.welcome(drafter)

    def drafter_renewed(self, drafter: PooledDrafter) -> None:
        """Restarts the comparison of a drafter in a rollout, because its model has changed."""
        self.rollouts.restart(drafter.name)

    def drafter_replaced(self, drafter: PooledDrafter, delay: float) -> None:
        """Starts moving a drafter's sequences to its new model."""
        self._replacements.begin(drafter, delay)

    def drafter_dropped(self, drafter: PooledDrafter, sequence_ids: Sequence[int], why: Dropped) -> None:
        """Assigns the sequences that a drafter lost to other drafters."""
        self.drafting.dropped(drafter, sequence_ids, why)
