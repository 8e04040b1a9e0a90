"""Drafters that run in the verifying engine's own thread: they draft just before a step, and nobody waits for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch

from speculative_engine.drafters.drafter import Drafter, DraftSpec, EngineState, StateDrafter, UsesEngine
from speculative_engine.proposal import Proposal
from speculative_engine.sequence import Sequence


class LocalDrafters:
    """Drafters by source, and what they are told of the engine's sequences."""

    def __init__(self, max_tree_nodes: int, vocab_size: int, engine: EngineState):
        self._engine = engine
        self._max_tree_nodes = max_tree_nodes
        self._vocab_size = vocab_size
        self._drafters: dict[str, Drafter] = {}
        self._seconds: dict[str, float] = {}

    def __contains__(self, source: str) -> bool:
        return source in self._drafters

    def add(self, source: str, drafter: Drafter) -> None:
        """Have a drafter."""
        if isinstance(drafter, UsesEngine):
            drafter.enter(self._engine)
        self._drafters[source] = drafter

    def remove(self, source: str) -> None:
        """Have it no more; does nothing if there is none."""
        self._drafters.pop(source, None)

    def open(self, source: str, sequence: Sequence) -> None:
        """Let a drafter draft for a sequence; does nothing if it is none of these."""
        if source in self._drafters:
            spec = sequence.spec
            self._drafters[source].open(
                spec.sequence_id,
                DraftSpec(sequence.tokens, spec.sampling, self._max_tree_nodes, spec.max_length, self._vocab_size),
            )

    def commit(self, sequence: Sequence, tokens: list[int]) -> None:
        """Tell those that draft for a sequence what it committed last."""
        for source in sequence.readers:
            if source in self._drafters:
                self._drafters[source].commit(sequence.spec.sequence_id, sequence.length, tokens)

    def takes_states(self, source: str) -> bool:
        """Whether a drafter is one of these that drafts from the target's last hidden states."""
        return isinstance(self._drafters.get(source), StateDrafter)

    def see(self, sequence: Sequence, state: torch.Tensor) -> torch.Tensor | None:
        """Show the last hidden state behind what a sequence committed last to those of these that draft from it.

        Returns it if there are others that do.
        """
        others = None
        for source in sequence.state_readers:
            if source in self._drafters:
                cast(StateDrafter, self._drafters[source]).see(sequence.spec.sequence_id, state)
            else:
                others = state
        return others

    def close(self, source: str, sequence_id: int) -> None:
        """Let a drafter draft no more for a sequence; does nothing if it does not."""
        if source in self._drafters:
            self._drafters[source].close(sequence_id)

    def end(self, sequence_id: int) -> None:
        """A sequence is over: none drafts for it any more."""
        for drafter in self._drafters.values():
            drafter.close(sequence_id)

    @property
    def busy(self) -> bool:
        """Whether `grow` has something to do."""
        return any(drafter.busy for drafter in self._drafters.values())

    def grow(self) -> Iterator[tuple[int, str, Proposal]]:
        """Let all draft that have something to do: what they propose, with the sequence's id and the source."""
        for source, drafter in self._drafters.items():
            if drafter.busy:
                growth = drafter.grow()
                self.count_seconds({source: growth.seconds})
                for key, proposal in growth.proposals.items():
                    yield cast(int, key), source, proposal

    def count_seconds(self, seconds: dict[str, float]) -> None:
        """Count time that was taken for drafters, by source."""
        for source, each in seconds.items():
            self._seconds[source] = self._seconds.get(source, 0.0) + each

    def take_seconds(self) -> dict[str, float]:
        """How long each has drafted since this was last asked, and had rows of its own computed, by source."""
        seconds, self._seconds = self._seconds, {}
        return seconds
