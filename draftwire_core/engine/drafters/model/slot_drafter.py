"""The base of drafters with a packed model, whose sequences share its KV slots."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from draftwire_core.engine.drafters.base import BaseDrafter, TreeDraft
from draftwire_core.engine.drafters.drafter import DrafterFullError, DraftSpec, Growth
from draftwire_core.engine.drafters.model.step_shares import StepShares
from draftwire_core.engine.drafters.tree_growth import TreeGrowth
from draftwire_core.engine.kv.fair_shares import ServedVerifier
from draftwire_core.engine.kv.kv_slots import SlotList, SlotPool
from draftwire_core.engine.kv.recurrent_states import LaneState, SequenceState
from draftwire_core.engine.kv.slot_queue import SlotQueue, SlotUse
from draftwire_core.engine.model.packed_batch import BatchBuilder
from draftwire_core.engine.model.packed_model import PackedModel


class SlotDraft(TreeDraft):
    """One sequence: its tokens as the model reads them, and the KV slots of the leading ones. Nodes may hold slots
    too."""

    def __init__(self, spec: DraftSpec, tokens: list[int]):
        super().__init__(spec)
        self.spec = replace(spec, tokens=())  # a long text need not stay in memory next to what is read of it
        self.tokens = tokens
        self.slots = SlotList()
        self.state = SequenceState()
        """Of recurrent layers, if the model has any."""

    @property
    def length(self) -> int:
        """Number of committed tokens that are read."""
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Number of tokens that have not been through the model; 0 if the root was expanded before it was committed."""
        return len(self.tokens) - self.slots.length

    @property
    def readable(self) -> int:
        """Number of pending tokens that can go through the model now."""
        return self.pending

    @abstractmethod
    def give_up(self) -> np.ndarray:
        """Releases all KV slots and returns them. Tokens and tree stay, since the verifier mirrors the tree."""

    def add_pending(self, builder: BatchBuilder, pool: SlotPool, count: int) -> bool:
        """Adds the rows of the next `count` pending tokens to a batch, with slots of their own.

        Returns whether they include the last token, the only one whose row has logits.
        """
        start = len(self.slots)
        end = start + count
        taken = pool.take_list(count, self.slots.last)
        reaches = end == len(self.tokens)
        rows = [
            builder.add_row(self.tokens[at], at, slot, reaches and at == end - 1)
            for at, slot in zip(range(start, end), taken, strict=True)
        ]
        builder.add_lane(self.slots.array().copy(), rows, 0, LaneState(self.state), owner=self.slots)
        self.slots.extend(taken)
        return reaches


SlotDraftT = TypeVar("SlotDraftT", bound=SlotDraft)


class SlotDrafter(BaseDrafter[SlotDraftT]):
    """A SharedDrafter (see `drafter.SharedDrafter`); sequences wait while there is no room for their KV slots."""

    def __init__(self, model: PackedModel, tree_room: int, growth: TreeGrowth | None = None):
        """tree_room: number of KV slots reserved for a sequence's tree at admission. growth: chooses the nodes to
        draft; the default assumes that a step's cost does not depend on its rows."""
        super().__init__()
        self.model = model
        self._queue: SlotQueue[Hashable, SlotDraftT] = SlotQueue(
            model.pool, tree_room, owner=lambda draft: draft.spec.verifier
        )
        self._growth = growth if growth is not None else TreeGrowth()
        self._shares = StepShares(self._growth)

    @property
    def sequences(self) -> int:
        """Number of open sequences."""
        return len(self._drafts)

    @property
    def preemptions(self) -> int:
        """Number of times a sequence gave up its KV slots to others, to be recomputed later."""
        return self._queue.preemptions

    def open(self, key: Hashable, spec: DraftSpec) -> None:
        """Starts drafting for a sequence, or queues it while there is no room. Raises DrafterFullError."""
        super().open(key, spec)
        self._queue.add(key, self._drafts[key])

    def commit(self, key: Hashable, committed_length: int, tokens: Sequence[int]) -> None:
        """Applies a verdict. Accepted nodes keep their KV slots, pruned ones are rolled back."""
        self.clock.enter("walk")
        self.rollback(self._follow(key, committed_length, tokens))
        self._queue.admit()

    def rollback(self, slots: list[int]) -> None:
        """Rolls back nodes that a verdict has pruned: their KV slots return to the pool.

        No tensor is copied or cleared. A slot holds the keys and values of one token, and a slot that belongs to no
        sequence is never read.
        """
        self.model.pool.give_back(slots)

    def _reading(
        self, pending: Callable[[SlotDraftT], int], most: int, growth: Growth
    ) -> Iterator[tuple[Hashable, SlotDraftT, int]]:
        """Divides up to `most` committed tokens of a step among verifiers, and counts them in `growth`.

        pending: tokens that a sequence could read. Yields the sequences that read some, the fewest pending first (the
        one new token of a verdict, then prompts), each with their number.
        """
        running = self._queue.running
        shares = self._shares.committed(((draft.spec.verifier, pending(draft)) for draft in running.values()), most)
        for key, draft in sorted(running.items(), key=lambda item: pending(item[1])):
            verifier = draft.spec.verifier
            count = min(pending(draft), shares.get(verifier, 0))
            if count:
                shares[verifier] -= count
                growth.rows[verifier] += count
                yield key, draft, count

    def close(self, key: Hashable) -> None:
        """Stops drafting for a sequence and frees its KV slots."""
        super().close(key)
        self._queue.remove(key)

    def slot_use(self) -> dict[ServedVerifier, SlotUse]:
        """Returns the KV slot use of each verifier with open sequences."""
        return self._queue.use()


def check_room(spec: DraftSpec, tree: int, pool: SlotPool) -> None:
    """Raises DrafterFullError for a sequence that, read as a whole, can never fit next to a tree of so many slots."""
    needed = max(spec.max_length, len(spec.tokens)) + tree
    if needed > pool.capacity:
        raise DrafterFullError(f"sequence needs {needed} KV slots, but there are only {pool.capacity}")


def within(logits: torch.Tensor, limits: Sequence[int]) -> torch.Tensor:
    """Returns logits [rows, vocabulary] without the ids at or above each row's limit."""
    most = max(limits)
    if min(limits) < most:  # targets with different vocabularies share the batch
        beyond = torch.arange(most, device=logits.device) >= torch.tensor(limits, device=logits.device).unsqueeze(1)
        return logits[:, :most].masked_fill(beyond, -torch.inf)
    return logits if most == logits.shape[1] else logits[:, :most]
