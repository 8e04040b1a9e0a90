"""The target's side of speculation: continuous batching, verification of token trees, rollback.

It is not thread-safe and never blocks: a single thread calls it, and `wait_seconds` says how long to wait for
proposals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as ListLike
from functools import partial
from itertools import zip_longest

from draftwire_core.engine.drafters.drafter import Drafter, EngineState
from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.feature_streams import MOST_SHARE, FeatureStreams
from draftwire_core.engine.engine.local_drafters import LocalDrafters
from draftwire_core.engine.engine.next_step import NextStep
from draftwire_core.engine.engine.probe_planner import ProbePlanner
from draftwire_core.engine.engine.scoring import ScoreSpec, Scoring
from draftwire_core.engine.engine.sequence import Sequence, SequenceSpec
from draftwire_core.engine.engine.settlement import Settlement
from draftwire_core.engine.engine.step_result import MergedProposals, SequenceOutcome, StepResult
from draftwire_core.engine.engine.target_pass import TargetPass
from draftwire_core.engine.kv.prefix_cache import PrefixCache
from draftwire_core.engine.kv.slot_queue import SlotQueue
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.drafter_timing import ProposalClock
from draftwire_core.engine.planning.planner import Plan, Planner
from draftwire_core.engine.planning.planning_record import PlanningRecord
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import MergeCount, Proposal, ProposalReader

_LONGEST_MERGE = 0.01
"""Cap on the processor time counted for reading one proposal: anything longer was an interruption, such as garbage
collection."""


class VerificationEngine:
    """Runs sequences on a target model, with or without drafters."""

    def __init__(
        self,
        model: PackedModel,
        cost: StepCost,
        limits: EngineLimits,
        merging_clock: Callable[[], float] = time.thread_time,
    ):
        """merging_clock: returns the calling thread's processor time in seconds."""
        if limits.max_step_rows < limits.max_sequences:
            raise ValueError("a step needs a row for every running sequence")
        self.model = model
        self.limits = limits
        self.planner = Planner(cost, limits.max_step_rows, limits.plain_share)
        self.record = PlanningRecord()
        self.clock = StepClock()
        """Splits the engine's time by phase; the caller enters phases for what it does between calls."""
        self.prefix_cache = PrefixCache(model.pool) if limits.prefix_cache else None
        self._queue: SlotQueue[int, Sequence] = SlotQueue(
            model.pool,
            tree_room=limits.max_tree_nodes,
            most_running=limits.max_sequences,
            take_up=lambda sequence: sequence.take_up(model.pool),
        )
        self._running = self._queue.running
        self._local = LocalDrafters(
            limits.max_tree_nodes,
            model.vocab_size,
            cost,
            lambda source: EngineState(self._running, cost, partial(self._guessed, source)),
        )
        self._probes = ProbePlanner(cost, self._local.accounts)
        self._scoring = Scoring(model.pool)
        self.features = FeatureStreams(self._running, model.hidden_size)
        """Features for drafters outside this thread."""
        self._pass = TargetPass(model, self.clock, self._scoring, self._local, self.features)
        self._settlement = Settlement(model.pool, self.planner, self.clock, self._local, self._probes)
        self.places = limits.max_sequences
        """How many sequences run at once: the maximum, or those that ran after the last step if others then waited for
        KV slots. Read by other threads, too: between two steps sequences come one by one."""
        self._merging_clock = merging_clock
        self._merged: dict[str, MergedProposals] = {}
        """Proposals merged since the last step, by source; only those of drafters outside this thread."""
        self._next = NextStep(
            model.pool,
            limits,
            self._queue,
            self.planner,
            self._local,
            self._probes,
            self._scoring,
            self.record,
            self.clock,
        )

    @property
    def running(self) -> int:
        """Number of sequences that hold KV slots."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Number of sequences that wait for KV slots."""
        return len(self._queue.waiting)

    @property
    def busy(self) -> bool:
        """Whether there is anything to do in a step."""
        return bool(self._running or self._scoring)

    @property
    def preemptions(self) -> int:
        """Number of times a sequence gave up its KV slots to older ones, to be recomputed later."""
        return self._queue.preemptions

    def slots_needed(self, max_length: int) -> int:
        """Returns the most KV slots a sequence may need, its tree included."""
        return max_length + self.limits.max_tree_nodes

    def add(self, spec: SequenceSpec) -> None:
        """Queues a sequence. Raises ValueError if its id is taken, or if it could never run (see `slots_needed`)."""
        if self._queue.find(spec.sequence_id) is not None:
            raise ValueError(f"sequence {spec.sequence_id} is already running")
        if self.slots_needed(spec.max_length) > self.model.pool.capacity:
            raise ValueError(f"sequence of {spec.max_length} tokens does not fit into the KV cache")
        self._queue.add(spec.sequence_id, Sequence(spec, spec.prefix_in(self.prefix_cache)))
        self._next.discard()

    def remove(self, sequence_id: int) -> None:
        """Ends a sequence and returns its slots; does nothing if it has ended."""
        self._queue.remove(sequence_id)
        self._local.end(sequence_id)
        self.features.end(sequence_id)
        self._next.discard()

    def add_score(self, spec: ScoreSpec) -> None:
        """Queues a text to be scored next to the sequences. Raises ValueError as `Scoring.add` does."""
        self._scoring.add(spec)
        self._next.discard()

    def remove_score(self, score_id: int) -> None:
        """Ends the scoring of a text and returns its slots; does nothing if it has ended."""
        self._scoring.remove(score_id)
        self._queue.admit()
        self._next.discard()

    def add_drafter(self, source: str, drafter: Drafter) -> None:
        """Adds a drafter that runs in this thread, for the sequences that `source` is attached to."""
        self._local.add(source, drafter)
        self._probes.add(source, drafter)

    def attach(self, sequence_id: int, source: str, *, hidden_states: bool = False, kind: str = "") -> None:
        """Accepts proposals of drafter `source` for a sequence from now on; attaching a drafter again resets it.

        hidden_states: whether a drafter outside this thread drafts from the target's last hidden states, which outcomes
        then include. kind: see Planner.add_source.
        """
        timed = source not in self._local  # drafters in this thread are never waited for
        self.planner.add_source(source, timed=timed, kind=kind)
        sequence = self._queue.find(sequence_id)
        if sequence is not None:
            reader = ProposalReader(
                source,
                self.limits.max_tree_nodes,
                self.model.vocab_size,
                draws=timed and sequence.rule.draws,  # drafters in this thread propose point masses
            )
            sequence.attach(
                reader,
                ProposalClock(self.planner.timings[source], always=sequence.spec.always_draft) if timed else None,
                hidden_states=hidden_states or self._local.takes_states(source),
            )
            self._local.open(source, sequence)
            self.features.open(source, sequence_id)
            if kind:
                self._local.accounts.group(source, kind)
            self._next.discard()

    def detach(self, sequence_id: int, source: str) -> None:
        """Stops accepting proposals of `source` for a sequence; the nodes it drafted stay."""
        sequence = self._queue.find(sequence_id)
        if sequence is not None:
            sequence.detach(source)
            self._local.close(source, sequence_id)
            self.features.close(source, sequence_id)
            self._next.discard()

    def forget(self, source: str) -> None:
        """Detaches a drafter from all sequences and drops its statistics."""
        for sequence in self._queue:
            sequence.detach(source)
        self.planner.remove_source(source)
        self._local.remove(source)
        self.features.remove(source)
        self._probes.remove(source)
        self._next.discard()

    def rests(self, source: str) -> bool:
        """Whether a drafter in this thread rests, since it does not pay. Any thread may ask."""
        return self._local.accounts.rests(source)

    def pause(self, source: str, *, paused: bool) -> None:
        """Records whether a drafter is paused: it then receives no verdicts, and the planner does not wait for it."""
        timing = self.planner.timings.get(source)
        if timing is not None:
            timing.paused = paused
        self.features.pause(source, paused=paused)

    def propose(self, sequence_id: int, source: str, proposal: Proposal, arrived_at: float | None = None) -> MergeCount:
        """Merges a proposal into a sequence's tree. Raises ProposalError, after which the source is detached.

        arrived_at: time of arrival, by time.perf_counter; default now.
        """
        sequence = self._queue.find(sequence_id)
        reader = sequence.readers.get(source) if sequence else None
        if sequence is None or reader is None:
            return MergeCount(0, len(proposal.token_ids))
        began = self._merging_clock()
        try:
            count = reader.merge(proposal, sequence.tree, sequence.tokens)
        except Exception:
            self.detach(sequence_id, source)
            raise
        finally:
            if source not in self._local:
                merged = self._merged.get(source)
                if merged is None:
                    merged = self._merged[source] = MergedProposals()
                merged.seconds += min(self._merging_clock() - began, _LONGEST_MERGE)
                merged.nodes += len(proposal.token_ids)
        if count.added:
            self._next.discard()
        sequence.foreseen |= count.foreseen
        clock = sequence.clocks.get(source)
        if clock is not None and sequence_id in self._running:
            clock.arrived(proposal, time.perf_counter() if arrived_at is None else arrived_at)
        return count

    def wait_seconds(self) -> float:
        """Returns how long to wait for proposals before the next step; 0 means step now."""
        self.clock.enter("plan")
        decoding, candidates, plan = self._next.plan(self.propose)
        if not candidates or len(decoding) < len(self._running):
            return 0.0  # drafters can use the time while prompts are computed
        now = time.perf_counter()
        wait = self.planner.worthwhile_wait(plan, candidates, now)
        if wait > 0:
            self.record.put_off(now, frozenset(self._running), plan.expected_tokens)
        return wait

    def drafted_seconds(self) -> float:
        """Returns the expected duration of the next step; 0 if no drafter outside this thread drafts for it now."""
        decoding, candidates, plan = self._next.plan(self.propose)
        if not candidates:
            return 0.0
        timings = self.planner.timings
        drafted = any(not timings[source].paused for sequence in decoding for source in sequence.clocks)
        return plan.seconds if drafted else 0.0

    def step(self) -> StepResult:
        """Verifies the planned nodes of all running sequences and computes a part of new prompts, in one pass."""
        self.clock.enter("plan")
        decoding, _, plan = self._next.plan(self.propose)
        started = time.perf_counter()  # drafting in this thread is not part of a step's cost
        self._next.discard()
        decoded = frozenset(sequence.spec.sequence_id for sequence in decoding)
        jobs, scored = self._next.jobs(decoding, plan)
        if not jobs and not scored:
            return StepResult([], 0)
        for job in jobs:
            if job.sequence.began is None:
                job.sequence.began = started
        computed = self._pass.compute(jobs, scored)
        self.clock.enter("walk")
        now = time.perf_counter()
        outcomes: list[SequenceOutcome] = []
        first = 0
        for job in jobs:
            count = len(job.sampled_positions)
            if count:
                outcome = self._settlement.settle(job, computed.asked.of(slice(first, first + count)), now)
                if outcome is not None:
                    outcomes.append(outcome)
                    if outcome.finish is not None:
                        self.remove(outcome.sequence_id)
                first += count
            else:
                job.commit([])
        self._settlement.finish(outcomes, computed.asked.raw)
        self._local.accounts.settle(len(decoding), jobs, outcomes)
        prices = self._prices(len(decoding), computed.rows, sum(map(len, plan.nodes)))
        decodes_only = len(jobs) == len(decoding) or not any(job.sequence.pending > 1 for job in jobs)
        found, featured = 0.0, self.features.share_of(now - started)
        if computed.rows <= 64 and not scored and decodes_only:
            found = self.planner.cost.observe(computed.rows, now - started, computed.seen, len(jobs))
        features = self.features.hand_out() if self.features else []
        self._queue.admit()
        self.places = max(1, self.running) if self.waiting else self.limits.max_sequences
        drafting = self._local.accounts.take_seconds()
        if decoded:
            self._settle_paces(decoding, plan, self.record.waited(started, decoded), sum(drafting.values()))
            tokens = sum(len(outcome.tokens) for outcome in outcomes if outcome.sequence_id in decoded)
            self.record.stepped(started, decoded, sum(map(len, plan.nodes)), tokens)
        seconds = time.perf_counter() - started
        merged, self._merged = self._merged, {}
        return StepResult(
            outcomes,
            computed.rows,
            seconds,
            *prices,
            drafting,
            merged,
            computed.scores,
            computed.prompts,
            features,
            self.features.take_seconds(),
            found * (1.0 - featured) if computed.rows == len(jobs) and featured <= MOST_SHARE else 0.0,
        )

    def _guessed(self, source: str) -> list[float]:
        """Returns what `EngineState.guessed` does for the drafter of a source."""
        decoding = [sequence for sequence in self._running.values() if sequence.pending == 1]
        found = [self.planner.guessed(sequence.tree, source) for sequence in decoding]
        return [sum(chances) / len(found) for chances in zip_longest(*found, fillvalue=0.0)]

    def _settle_paces(self, decoding: list[Sequence], plan: Plan, waited: float, drafting: float) -> None:
        """Settles the paces of a step's sequences. waited, drafting: seconds by which the step was delayed."""
        due, beside = self.planner.due(plan, waited), self.planner.due(plan, waited + drafting)
        for sequence, expected in zip(decoding, plan.expected, strict=True):
            # Whether drafting pays for those that it is for is up to the drafters' accounts.
            sequence.pace.settle(expected, due if sequence.readers else beside)

    def _prices(self, sequences: int, rows: int, nodes: int) -> tuple[float, float]:
        """Returns `StepResult.plain_seconds` and `StepResult.node_tokens` of a step."""
        cost = self.planner.cost
        if not sequences:
            return cost.seconds(1, 1), 0.0
        return cost.seconds(sequences, sequences), cost.node_tokens(rows, nodes, sequences)


def generate_all(
    engine: VerificationEngine, specs: ListLike[SequenceSpec], count: Callable[[int], None] = lambda tokens: None
) -> list[list[int]]:
    """Runs sequences to completion on an otherwise idle engine; returns the tokens of each, in the order of `specs`.

    The engine admits as many at once as its limits allow. count: called after each step with the number of tokens that
    it committed. Raises ValueError for a sequence that could never run.
    """
    tokens: dict[int, list[int]] = {spec.sequence_id: [] for spec in specs}
    for spec in specs:
        engine.add(spec)
    while engine.running:
        outcomes = engine.step().outcomes
        for outcome in outcomes:
            tokens[outcome.sequence_id] += outcome.tokens
        count(sum(len(outcome.tokens) for outcome in outcomes))
    return [tokens[spec.sequence_id] for spec in specs]
