"""The engine's next step: which sequences decode, which nodes are verified, and which prompts and texts share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as ListLike
from typing import NamedTuple

from draftwire_core.engine.engine.engine_limits import EngineLimits
from draftwire_core.engine.engine.local_drafters import LocalDrafters
from draftwire_core.engine.engine.probe_planner import ProbePlanner
from draftwire_core.engine.engine.scoring import Scoring
from draftwire_core.engine.engine.sequence import Sequence
from draftwire_core.engine.engine.verification_job import VerificationJob
from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.kv.prefix_cache import common_length
from draftwire_core.engine.kv.slot_queue import SlotQueue
from draftwire_core.engine.planning.planner import Candidate, Plan, Planner
from draftwire_core.engine.planning.planning_record import PlanningRecord
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.tree.proposal import Proposal


class StepPlan(NamedTuple):
    """The sequences and nodes that the next step verifies."""

    decoding: list[Sequence]
    """The sequences that get a token."""
    candidates: list[Candidate]
    """The nodes of each that could be verified; empty if nobody drafts."""
    plan: Plan


class NextStep:
    """Plans the next step, once until something changes it."""

    def __init__(
        self,
        pool: SlotPool,
        limits: EngineLimits,
        queue: SlotQueue[int, Sequence],
        planner: Planner,
        local: LocalDrafters,
        probes: ProbePlanner,
        scoring: Scoring,
        record: PlanningRecord,
        clock: StepClock,
    ):
        self._pool, self._limits, self._queue, self._planner = pool, limits, queue, planner
        self._local, self._probes, self._scoring = local, probes, scoring
        self._record, self._clock = record, clock
        self._prompts: list[Sequence] = []
        """The sequences whose prompts the next step continues, oldest first."""
        self.planned: StepPlan | None = None
        """The plan, if nothing has changed since it was made."""

    def discard(self) -> None:
        """Drops the plan, as something has changed it."""
        self.planned = None

    def plan(self, propose: Callable[[int, str, Proposal], object]) -> StepPlan:
        """Returns the plan. For a new one, drafters of this thread draft, and sequences get the KV slots they lack.

        propose: merges the proposal of a drafter, by its name, into a sequence's tree.
        """
        if self.planned is None:
            self.planned = self._make(propose)
        return self.planned

    def jobs(self, decoding: list[Sequence], plan: Plan) -> tuple[list[VerificationJob], int]:
        """Returns each sequence's part of a step, and the number of text tokens scored in it."""
        jobs = [VerificationJob(sequence, 1, nodes) for sequence, nodes in zip(decoding, plan.nodes, strict=True)]
        free, scored = self._most_rows() - len(jobs) - sum(map(len, plan.nodes)), 0
        if self._prompts or self._scoring:
            room = self._planner.cost.prompt_rows(len(decoding), free)
            scored = self._scored_rows(room)
            rows = divide([sequence.pending for sequence in self._prompts], room - scored)
            jobs += [VerificationJob(*share, []) for share in zip(self._prompts, rows, strict=True) if share[1]]
        if len(jobs) == len(decoding) and not scored:
            self._record.probe_rows += self._probes.choose(jobs, free)
        return jobs, scored

    def _make(self, propose: Callable[[int, str, Proposal], object]) -> StepPlan:
        running = self._queue.running
        self._local.accounts.turn_to(running.values())
        if self._local.busy and not self._one_has_to_catch_up():
            self._clock.enter("draft")
            for sequence_id, source, proposal in self._local.grow():
                propose(sequence_id, source, proposal)
            self._clock.enter("plan")
        if self._scoring and self._queue.spare < 0:
            self._scoring.give_up()
            self._queue.admit()
        decoding: list[Sequence] = []
        for sequence in running.values():
            if sequence.pending > 1:
                sequence.take_up(self._pool)
            if sequence.pending == 1:
                decoding.append(sequence)
        if self._pool.free < len(running):  # each needs one slot at most
            self._queue.make_room(self._least_rows)
            decoding = [sequence for sequence in running.values() if sequence.pending == 1]
        self._prompts = to_compute(running.values()) if len(decoding) < len(running) else []
        pending = self._pending_prompts() + self._scoring.pending if self._prompts or self._scoring else 0
        most = self._most_rows()
        # Prompt chunks and texts to score share the step; half of it stays reserved for nodes.
        other = min(pending, self._planner.cost.prompt_rows(len(decoding), most // 2)) if pending else 0
        prompts = len(running) - len(decoding)
        if any(sequence.tree.size or sequence.clocks for sequence in decoding):
            candidates = [sequence.candidate(self._limits.max_tree_nodes) for sequence in decoding]
            plan = self._planner.plan(candidates, other, most, prompts)
            return StepPlan(decoding, candidates, plan)
        return StepPlan(decoding, [], self._planner.plain(len(decoding), other) if decoding else Plan([], 0.0, 0.0))

    def _one_has_to_catch_up(self) -> bool:
        """Returns whether a sequence without drafters is behind, so that the next step verifies no nodes."""
        decoding = [sequence for sequence in self._queue.running.values() if sequence.pending == 1]
        if any(sequence.spec.always_draft for sequence in decoding):
            return False
        return any(sequence.pace.ahead < 0 and not sequence.readers for sequence in decoding)

    def _least_rows(self) -> int:
        """Returns the fewest rows with which the step advances every decoding sequence and the oldest one."""
        pending = [sequence.pending for sequence in self._queue.running.values()]
        return pending.count(1) + (pending[0] > 1)

    def _pending_prompts(self) -> int:
        return sum(sequence.pending for sequence in self._prompts)

    def _scored_rows(self, room: int) -> int:
        """Returns the rows for scored texts: what prompts leave of the prompt rows, but at least a quarter."""
        if not self._scoring:
            return 0
        return self._scoring.rows(max(room // 4, room - self._pending_prompts()), self._queue.spare)

    def _most_rows(self) -> int:
        """Returns the most rows a step may have, given that each row takes a KV slot."""
        return min(self._limits.max_step_rows, self._pool.free)


_WORTH_WAITING = 32
"""Fewest tokens for which a sequence waits until another has computed them."""


def to_compute(running: Iterable[Sequence]) -> list[Sequence]:
    """Returns the sequences whose prompts to compute, oldest first.

    A sequence is left out while an older one computes a prefix that it can read from the prefix cache later. The older
    one is computed in the same steps, so it either advances or ends, and the wait is over in both cases.
    """
    chosen: list[Sequence] = []
    ahead: list[Sequence] = []  # whose prompts the next step continues, or completes by their last token
    for sequence in running:
        if sequence.pending > 1:
            if any(_waits(sequence, older) for older in ahead):
                continue
            chosen.append(sequence)
        elif sequence.sound:
            continue
        ahead.append(sequence)
    return chosen


def divide(pending: ListLike[int], rows: int) -> list[int]:
    """Divides rows among prompts, given the number of pending tokens of each, oldest first.

    The oldest prompt gets half, so that none starves. The rest goes to the prompts with the fewest pending tokens, so
    that a long prompt does not delay a short one.
    """
    shares = [0] * len(pending)
    if pending:
        shares[0] = min(pending[0], (rows + 1) // 2)
        rows -= shares[0]
    for index in sorted(range(len(pending)), key=lambda index: pending[index]):
        more = min(pending[index] - shares[index], rows)
        shares[index] += more
        rows -= more
    return shares


def _waits(sequence: Sequence, older: Sequence) -> bool:
    """Whether reading the older sequence's prefix saves more tokens than the older one computes beyond that prefix."""
    if sequence.prefix is None or older.prefix is None or not (sequence.prefix.takes and older.prefix.leaves):
        return False
    start, end = len(sequence.slots), len(sequence.tokens) - 1
    first = start + _WORTH_WAITING
    if end < first or sequence.tokens[start:first] != older.tokens[start:first]:
        return False
    common = older.kept_length(common_length(sequence.tokens[:end], older.tokens))
    return common - start > len(older.tokens) - common
