"""Drafters in the verification engine's own thread. They draft just before a step, so the engine never waits for
them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch

from draftwire_core.engine.drafters.drafter import (
    Drafter,
    DraftSpec,
    EngineState,
    OwnsModel,
    StateDrafter,
    TappingDrafter,
    UsesEngine,
)
from draftwire_core.engine.engine.drafting_accounts import DraftingAccounts
from draftwire_core.engine.engine.sequence import Sequence
from draftwire_core.engine.model.features.taps import Tap
from draftwire_core.engine.model.packed_batch import PackedBatch
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.tree.proposal import Proposal


class LocalDrafters:
    """Holds the engine's own drafters by source and passes them commits. Each drafts while that pays."""

    def __init__(self, max_tree_nodes: int, vocab_size: int, cost: StepCost, state_for: Callable[[str], EngineState]):
        """cost: of the target's steps. state_for: returns what the drafter of a source may see of the engine."""
        self._state_for = state_for
        self._max_tree_nodes = max_tree_nodes
        self._vocab_size = vocab_size
        self._drafters: dict[str, Drafter] = {}
        self._taps: dict[str, Tap] = {}
        """The taps of those drafters that have one, by source."""
        self.accounts = DraftingAccounts(cost)
        self._held: dict[str, dict[int, tuple[Sequence, int]]] = {}
        """For each paused drafter, the sequences that have advanced since, each with the committed length the drafter
        knows. The drafter catches up when it drafts again."""
        self._coming: dict[str, set[int]] = {}
        """For each drafter, the sequences whose prompt is not computed yet, and which it does not read until then."""

    def __contains__(self, source: str) -> bool:
        return source in self._drafters

    def add(self, source: str, drafter: Drafter) -> None:
        """Adds a drafter."""
        if isinstance(drafter, UsesEngine):
            drafter.enter(self._state_for(source))
        if isinstance(drafter, TappingDrafter):
            self._taps[source] = drafter.tap
        self._drafters[source] = drafter
        self._coming[source] = set()
        self.accounts.add(source)

    def remove(self, source: str) -> None:
        """Removes a drafter; unknown ones are ignored."""
        drafter = self._drafters.pop(source, None)
        self._taps.pop(source, None)
        if isinstance(drafter, OwnsModel):
            drafter.release()
        self._held.pop(source, None)
        self._coming.pop(source, None)
        self.accounts.remove(source)

    def open(self, source: str, sequence: Sequence) -> None:
        """Starts a drafter on a sequence; unknown drafters are ignored.

        One with a model that reads nothing of the target's begins with the first token behind the prompt, which would
        come later if the thread read the prompt for the drafter, too.
        """
        if source in self._drafters:
            sequence_id = sequence.spec.sequence_id
            self._held.get(source, {}).pop(sequence_id, None)
            drafter = self._drafters[source]
            reads_alone = isinstance(drafter, OwnsModel) and not isinstance(drafter, TappingDrafter | StateDrafter)
            if sequence.pending > 1 and reads_alone:
                self._coming[source].add(sequence_id)
            else:
                self._begin(source, sequence)

    def _begin(self, source: str, sequence: Sequence) -> None:
        spec = sequence.spec
        self._coming[source].discard(spec.sequence_id)
        self._drafters[source].open(
            spec.sequence_id,
            DraftSpec(
                sequence.tokens,
                spec.sampling,
                self._max_tree_nodes,
                spec.max_length,
                self._vocab_size,
                private=spec.private,
            ),
        )

    def commit(self, sequence: Sequence, tokens: list[int]) -> None:
        """Passes the last committed tokens of a sequence to its drafters."""
        for source in sequence.readers:
            if source not in self._drafters:
                continue
            if sequence.spec.sequence_id in self._coming[source]:
                self._begin(source, sequence)
            else:
                held = self._held.setdefault(source, {})
                held.setdefault(sequence.spec.sequence_id, (sequence, sequence.length - len(tokens)))
                if self.accounts.open(source):
                    self._tell(source)

    def _tell(self, source: str) -> None:
        """Sends a drafter the commits that were held back."""
        held = self._held.get(source)
        if held:
            started = time.perf_counter()
            for sequence_id, (sequence, known) in held.items():
                self._drafters[source].commit(sequence_id, sequence.length, sequence.tokens[known:])
            held.clear()
            self.accounts.spent(source, time.perf_counter() - started)

    def takes_states(self, source: str) -> bool:
        """Whether a drafter is in this thread and drafts from the target's last hidden states."""
        return isinstance(self._drafters.get(source), StateDrafter)

    def wants_states(self, sequence: Sequence) -> bool:
        """Whether a sequence's hidden states are needed now; paused drafters of this thread do not need them."""
        return any(source not in self._drafters or self.accounts.open(source) for source in sequence.state_readers)

    def see(self, sequence: Sequence, state: torch.Tensor) -> torch.Tensor | None:
        """Passes the last hidden state of a sequence to the active drafters of this thread that draft from it.

        Returns the state if drafters outside this thread need it, else None.
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

    def taps(self, sequences: Iterable[Sequence]) -> list[Tap]:
        """Returns the taps for a pass over these sequences: those of their drafters. Those that may not draft now
        rest."""
        if not self._taps:
            return []
        attached = {source for sequence in sequences for source in sequence.readers}
        taps = {source: tap for source, tap in self._taps.items() if source in attached}
        for source, tap in taps.items():
            tap.resting = not self.accounts.open(source)
        return list(taps.values())

    def tapped(self, batch: PackedBatch) -> None:
        """Settles a pass with its taps: their drafters are charged for them, and the slots that others' taps have not
        read are unknown to these."""
        for source, tap in self._taps.items():
            if tap not in batch.taps:
                tap.forget(batch.numbers[2])
            elif not tap.resting:
                self.accounts.spent(source, tap.take_seconds())

    def close(self, source: str, sequence_id: int) -> None:
        """Stops a drafter on a sequence; does nothing if it does not draft for it."""
        if source in self._drafters:
            if sequence_id in self._coming[source]:
                self._coming[source].discard(sequence_id)
                return
            held = self._held.get(source, {}).pop(sequence_id, None)
            if held is not None:  # some drafters learn from a text for other sequences too
                sequence, known = held
                self._drafters[source].commit(sequence_id, sequence.length, sequence.tokens[known:])
            self._drafters[source].close(sequence_id)

    def end(self, sequence_id: int) -> None:
        """Stops all drafters on a sequence that has ended."""
        for source in self._drafters:
            self.close(source, sequence_id)

    @property
    def busy(self) -> bool:
        """Whether `grow` has something to do; False while all drafters are paused."""
        return not self.accounts.rest and (
            any(self._held.values()) or any(drafter.busy for drafter in self._drafters.values())
        )

    def grow(self) -> Iterator[tuple[int, str, Proposal]]:
        """Runs every drafter that has work and may draft; yields (sequence id, source, proposal).

        The time the caller takes for a proposal before asking for the next one is charged to the drafter.
        """
        for source, drafter in self._drafters.items():
            if not self.accounts.open(source):
                continue
            if source in self._taps:
                self._taps[source].catch_up()
            self._tell(source)
            if drafter.busy:
                started = time.perf_counter()
                growth = drafter.grow()
                for key, proposal in growth.proposals.items():
                    yield cast(int, key), source, proposal
                seconds = time.perf_counter() - started
                self.accounts.spent(source, seconds, reading=growth.reading_seconds, drafted=True)
