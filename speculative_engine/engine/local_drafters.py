"""Drafters that run in the verifying engine's own thread: they draft just before a step, and nobody waits for them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import cast

import torch

from speculative_engine.drafters.drafter import Drafter, DraftSpec, EngineState, StateDrafter, UsesEngine
from speculative_engine.engine.drafting_accounts import DraftingAccounts
from speculative_engine.engine.sequence import Sequence
from speculative_engine.tree.proposal import Proposal


class LocalDrafters:
    """Drafters by source, and what they are told of the engine's sequences. Each drafts while that pays."""

    def __init__(self, max_tree_nodes: int, vocab_size: int, engine: EngineState):
        self._engine = engine
        self._max_tree_nodes = max_tree_nodes
        self._vocab_size = vocab_size
        self._drafters: dict[str, Drafter] = {}
        self.accounts = DraftingAccounts(engine.cost)
        self._held: dict[str, dict[int, tuple[Sequence, int]]] = {}
        """By drafter that rests, the sequences that have gone on meanwhile, and the committed length it knows of each:
        it is told when it drafts again."""

    def __contains__(self, source: str) -> bool:
        return source in self._drafters

    def add(self, source: str, drafter: Drafter) -> None:
        """Have a drafter."""
        if isinstance(drafter, UsesEngine):
            drafter.enter(self._engine)
        self._drafters[source] = drafter
        self.accounts.add(source)

    def remove(self, source: str) -> None:
        """Have it no more; does nothing if there is none."""
        self._drafters.pop(source, None)
        self._held.pop(source, None)
        self.accounts.remove(source)

    def open(self, source: str, sequence: Sequence) -> None:
        """Let a drafter draft for a sequence; does nothing if it is none of these."""
        if source in self._drafters:
            spec = sequence.spec
            self._held.get(source, {}).pop(spec.sequence_id, None)
            self._drafters[source].open(
                spec.sequence_id,
                DraftSpec(sequence.tokens, spec.sampling, self._max_tree_nodes, spec.max_length, self._vocab_size),
            )

    def commit(self, sequence: Sequence, tokens: list[int]) -> None:
        """Tell those that draft for a sequence what it committed last."""
        for source in sequence.readers:
            if source in self._drafters:
                held = self._held.setdefault(source, {})
                held.setdefault(sequence.spec.sequence_id, (sequence, sequence.length - len(tokens)))
                if self.accounts.open(source):
                    self._tell(source)

    def _tell(self, source: str) -> None:
        """Tell a drafter what was held back."""
        held = self._held.get(source)
        if held:
            started = time.perf_counter()
            for sequence_id, (sequence, known) in held.items():
                self._drafters[source].commit(sequence_id, sequence.length, sequence.tokens[known:])
            held.clear()
            self.accounts.spent(source, time.perf_counter() - started)

    def takes_states(self, source: str) -> bool:
        """Whether a drafter is one of these that drafts from the target's last hidden states."""
        return isinstance(self._drafters.get(source), StateDrafter)

    def wants_states(self, sequence: Sequence) -> bool:
        """Whether anybody drafts from a sequence's hidden states now: those of these that rest do not."""
        return any(source not in self._drafters or self.accounts.open(source) for source in sequence.state_readers)

    def see(self, sequence: Sequence, state: torch.Tensor) -> torch.Tensor | None:
        """Show the last hidden state behind what a sequence committed last to those of these that draft from it.

        Returns it if there are others that do.
        """
        others = None
        for source in sequence.state_readers:
            if source in self._drafters:
                if not self.accounts.open(source):
                    continue
                started = time.perf_counter()
                cast(StateDrafter, self._drafters[source]).see(sequence.spec.sequence_id, state)
                self.accounts.spent(source, time.perf_counter() - started)
            else:
                others = state
        return others

    def close(self, source: str, sequence_id: int) -> None:
        """Let a drafter draft no more for a sequence; does nothing if it does not."""
        if source in self._drafters:
            held = self._held.get(source, {}).pop(sequence_id, None)
            if held is not None:  # some learn from a text also for others
                sequence, known = held
                self._drafters[source].commit(sequence_id, sequence.length, sequence.tokens[known:])
            self._drafters[source].close(sequence_id)

    def end(self, sequence_id: int) -> None:
        """A sequence is over: none drafts for it any more."""
        for source in self._drafters:
            self.close(source, sequence_id)

    @property
    def busy(self) -> bool:
        """Whether `grow` has something to do: not while all rest."""
        return not self.accounts.rest and (
            any(self._held.values()) or any(drafter.busy for drafter in self._drafters.values())
        )

    def grow(self) -> Iterator[tuple[int, str, Proposal]]:
        """Let all draft that have something to do and may: what they propose, with the sequence's id and the source.

        What is done with a proposal before the next one is asked for counts as the drafter's time.
        """
        for source, drafter in self._drafters.items():
            if not self.accounts.open(source):
                continue
            self._tell(source)
            if drafter.busy:
                started = time.perf_counter()
                growth = drafter.grow()
                for key, proposal in growth.proposals.items():
                    yield cast(int, key), source, proposal
                seconds = time.perf_counter() - started
                self.accounts.spent(source, seconds, reading=growth.reading_seconds, drafted=True)
