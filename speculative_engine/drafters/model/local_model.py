"""A draft model in the verifier: it drafts while the target rests, with all of its cores, in place of beside it."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence

from speculative_engine.drafters.drafter import DraftSpec, EngineState, Growth
from speculative_engine.drafters.model.draft_model import DraftModelDrafter
from speculative_engine.drafters.tree_growth import TreeGrowth
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.planning.round_worth import RoundWorth
from speculative_engine.planning.step_clock import StepClock
from speculative_engine.planning.step_cost import StepCost
from speculative_engine.tree.proposal import Proposal


class LocalModelDrafter:
    """A Drafter (see `drafter.Drafter`) in the verifying engine's thread.

    Its steps put the target's off, so they are made in rounds, each only while it pays (see `RoundWorth`), after every
    commit of a sequence. What a verdict leaves of a tree is kept, with its slots, as in a drafter service.
    """

    def __init__(self, model: PackedModel, share: float):
        """share: what a step of the model costs, compared to one of the target, to begin with; then what its steps
        really take counts."""
        self.model = model
        self.clock = StepClock()
        self._share = share
        self._drafter: DraftModelDrafter
        self._worth: RoundWorth
        self._engine: EngineState
        self._open: set[Hashable] = set()
        """Sequences that are no longer than what the model can read."""
        self._to_do = False
        """Whether sequences were opened, or committed tokens, since they were last drafted for."""

    def enter(self, engine: EngineState) -> None:
        """See UsesEngine."""
        self._engine = engine
        rows, seconds = zip(*engine.cost.points(), strict=True)
        cost = StepCost(rows, [self._share * each for each in seconds])
        self._drafter = DraftModelDrafter(self.model, TreeGrowth(cost))
        self._drafter.clock = self.clock
        self._worth = RoundWorth(engine.cost, cost)

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """See Drafter.open. A sequence that may grow longer than what the model can read is not drafted for."""
        self.close(key)
        if spec.max_length > self.model.context_length:
            return
        self._drafter.open(key, spec)
        self._open.add(key)
        self._to_do = True

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """See Drafter.commit."""
        if key in self._open:
            self._drafter.commit(key, committed_length, tokens)
            self._to_do = True

    def close(self, key: Hashable) -> None:
        """See Drafter.close."""
        self._open.discard(key)
        self._drafter.close(key)

    @property
    def busy(self) -> bool:
        """See Drafter.busy."""
        return self._to_do and self._drafter.busy

    def grow(self) -> Growth:
        """See Drafter.grow. Makes all rounds before a step: one in any case, as the engine decides whether to try."""
        started = time.perf_counter()
        growth = Growth([], {}, 0.0)
        decoding = sum(sequence.pending == 1 for sequence in self._engine.running.values())
        self._to_do = False
        reading, spent = self._drafter.catching_up, self._round(growth)
        if reading:
            growth.reading_seconds = spent
        while self._drafter.busy and not self._drafter.catching_up and self._pays(decoding, spent):
            spent += self._round(growth)
        self._to_do = self._drafter.catching_up  # a long prompt holds up each step by a part of it
        self.clock.enter(None)
        growth.seconds = time.perf_counter() - started
        return growth

    def _pays(self, decoding: int, spent: float) -> bool:
        outlook = self._drafter.outlook()
        return bool(outlook.gains) and self._worth.pays(decoding, outlook.worths, outlook.gains, outlook.rows, spent)

    def _round(self, growth: Growth) -> float:
        """Draft one step, and add what it brought; the seconds it took."""
        step = self._drafter.grow()
        growth.opened.extend(step.opened)
        for key, proposal in step.proposals.items():
            before = growth.proposals.get(key)
            growth.proposals[key] = proposal if before is None else _joined(before, proposal)
        return step.seconds


def _joined(first: Proposal, second: Proposal) -> Proposal:
    """Two proposals of one sequence, made one after the other for the same committed tokens."""
    return Proposal(
        committed_length=first.committed_length,
        first_node_id=first.first_node_id,
        token_ids=[*first.token_ids, *second.token_ids],
        parent_ids=[*first.parent_ids, *second.parent_ids],
        log_probs=[*first.log_probs, *second.log_probs],
    )
