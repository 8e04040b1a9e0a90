"""A draft model inside the verifier. It drafts while the target is idle, on all cores, instead of in parallel."""

from __future__ import annotations

import time
from collections.abc import Hashable, Sequence
from typing import Protocol

from draftwire_core.engine.device.gpu import return_unused
from draftwire_core.engine.drafters.drafter import Drafter, DraftSpec, EngineState, Growth
from draftwire_core.engine.drafters.model.draft_model import DraftModelDrafter, Outlook
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.model.packed_model import PackedModel
from draftwire_core.engine.planning.round_worth import RoundWorth
from draftwire_core.engine.planning.step_clock import StepClock
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import Proposal

_LIKELY = 0.5
"""Probability that other drafters have guessed the next token, from which the first round must pay, too."""


class RoundDrafter(Drafter, Protocol):
    """A drafter that is run step by step, see `DraftModelDrafter`."""

    @property
    def catching_up(self) -> bool:
        """Whether the next step mostly reads committed tokens."""

    @property
    def most_steps(self) -> int:
        """Most steps that `grow` drafts by one call of the device."""

    @property
    def following(self) -> float:
        """The probability that the next best node, not yet drafted, will be right given that its parent is."""

    def outlook(self) -> Outlook:
        """Returns the expected gain of the next `grow`."""

    def grow(self, steps: int = 1) -> Growth:
        """Drafts up to so many steps."""


class LocalModelDrafter:
    """A Drafter (see `drafter.Drafter`) in the verification engine's thread.

    Its steps delay the target's. They are therefore made in rounds after every commit of a sequence, each only while it
    pays (see `RoundWorth`). The part of a tree that survives a verdict is kept, with its slots, as in a drafter
    service.
    """

    def __init__(self, model: PackedModel, share: float, vocab_size: int | None = None):
        """share: initial cost of the model's step relative to the target's; measured steps correct it later.
        vocab_size: number of ids that the model reads; None if it reads all of the target's."""
        self.model = model
        self.clock = StepClock()
        self._share = share
        self._vocab_size = vocab_size
        self._left_out: set[Hashable] = set()
        """The sequences with an id that the model lacks, for which it does not draft: targets pad the vocabulary of a
        tokenizer further than its draft models do."""
        self._drafter: RoundDrafter
        self._worth: RoundWorth
        self._engine: EngineState
        self._to_do = False
        """Whether a sequence was opened or committed tokens since the last drafting."""

    def enter(self, engine: EngineState) -> None:
        """Receives the engine, and creates the drafter with costs derived from the engine's."""
        self._engine = engine
        rows, seconds = zip(*engine.cost.points(), strict=True)
        cost = StepCost(rows, [self._share * each for each in seconds])
        self._drafter = self._inner(engine, TreeGrowth(cost))
        self._drafter.clock = self.clock
        self._worth = RoundWorth(engine.cost, cost)

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Starts drafting for a sequence. Raises DrafterFullError."""
        self.close(key)
        if not self._reads(spec.tokens):
            self._left_out.add(key)
            return
        self._drafter.open(key, spec)
        self._to_do = True

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Applies a verdict. Raises OutOfSyncError, KeyError."""
        if not self._reads(tokens):
            self.close(key)
            self._left_out.add(key)
        if key in self._left_out:
            return
        self._drafter.commit(key, committed_length, tokens)
        self._to_do = True

    def close(self, key: Hashable) -> None:
        """Stops drafting for a sequence; does nothing if it is not open."""
        self._left_out.discard(key)
        self._drafter.close(key)

    def _reads(self, tokens: Sequence[int]) -> bool:
        return self._vocab_size is None or max(tokens) < self._vocab_size

    @property
    def busy(self) -> bool:
        """Whether there is something to draft since the last commit."""
        return self._to_do and self._drafter.busy

    def grow(self) -> Growth:
        """Drafts all rounds before a step: one, since the engine decides whether to try at all, then more as they pay.
        Where other drafters are likely to have guessed the next token, the first one must pay, too."""
        started = time.perf_counter()
        growth = Growth([], {}, 0.0)
        decoding = sum(sequence.pending == 1 for sequence in self._engine.running.values())
        others = self._engine.guessed()
        self._to_do = False
        if others and others[0] >= _LIKELY and not self._pays(decoding, others, 0, 0.0):
            return growth
        reading = self._drafter.catching_up
        spent = self._round(growth, decoding, 0.0)
        if reading:
            growth.reading_seconds = spent
        rounds = 1
        while self._drafter.busy and not self._drafter.catching_up and self._pays(decoding, others, rounds, spent):
            seconds = self._round(growth, decoding, spent)
            if not seconds:
                break  # there are no slots for what it would compute
            spent += seconds
            rounds += 1
        self._to_do = self._drafter.catching_up  # a long prompt delays each step by one part of it
        self.clock.enter(None)
        growth.seconds = time.perf_counter() - started
        return growth

    def release(self) -> None:
        """Frees the model, also from the GPU. The drafter cannot be used any more."""
        del self._drafter, self.model
        return_unused()

    def _inner(self, engine: EngineState, growth: TreeGrowth) -> RoundDrafter:
        """Returns the drafter that drafts single steps."""
        return DraftModelDrafter(self.model, growth)

    def _pays(self, decoding: int, others: Sequence[float], rounds: int, spent: float) -> bool:
        """Whether another round pays after `rounds` rounds of `spent` seconds. others: `EngineState.guessed`; a round
        gains what other drafters have not guessed, about one position further each time."""
        outlook = self._drafter.outlook()
        fresh = 1.0 - others[rounds] if rounds < len(others) else 1.0
        worths = [*outlook.worths, *(chance for chance in others for _ in range(decoding))]
        gains = [fresh * gain for gain in outlook.gains]
        return bool(gains) and self._worth.pays(decoding, worths, gains, outlook.rows, spent)

    def _steps(self, decoding: int, spent: float) -> int:
        """How many steps in a row are expected to pay, at least one, where one call of a GPU can draft several."""
        steps, most = 1, self._drafter.most_steps
        if most == 1:
            return 1
        worths, gains, rows = self._drafter.outlook()
        following = self._drafter.following
        while steps < most:
            worths, gains = [*worths, *gains], [gain * following for gain in gains]
            after = spent + steps * self._worth.drafting.seconds(rows)
            if not gains or not self._worth.pays(decoding, worths, gains, rows, after):
                break
            steps += 1
        return steps

    def _round(self, growth: Growth, decoding: int, spent: float) -> float:
        """Drafts the steps that pay by one call, adds their results to the growth, and returns their seconds."""
        step = self._drafter.grow(self._steps(decoding, spent))
        growth.opened.extend(step.opened)
        for key, proposal in step.proposals.items():
            before = growth.proposals.get(key)
            growth.proposals[key] = proposal if before is None else _joined(before, proposal)
        return step.seconds


def _joined(first: Proposal, second: Proposal) -> Proposal:
    """Joins two successive proposals of one sequence that build on the same committed tokens."""
    return Proposal(
        committed_length=first.committed_length,
        first_node_id=first.first_node_id,
        token_ids=[*first.token_ids, *second.token_ids],
        parent_ids=[*first.parent_ids, *second.parent_ids],
        log_probs=[*first.log_probs, *second.log_probs],
        last=second.last,
    )
