"""One sequence's part in the prefix cache: what it takes when it begins, and what it leaves to others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from speculative_engine.kv.kv_slots import SlotList
from speculative_engine.kv.prefix_cache import Prefix, PrefixCache


class SharedPrefix:
    """Knows which of a sequence's leading slots are in the cache. The others are the sequence's own."""

    def __init__(self, cache: PrefixCache, *, takes: bool, leaves: bool):
        """takes: whether the sequence reads what others have left. leaves: whether it leaves anything."""
        self.takes = takes
        self.leaves = leaves
        self.hits = 0
        """Tokens that it found since it was let in last."""
        self._cache = cache
        self._held: Prefix | None = None
        self._seen = -1
        """The cache's version when it was looked into last."""

    def take(self, tokens: Sequence[int], slots: SlotList) -> np.ndarray:
        """Read the longest prefix there is, the last token aside, which has to be computed for its logits.

        Returns slots that the sequence needs no more, int64: what it had computed itself of that.
        """
        own = slots.array()[:0]
        if self.takes and self._seen != self._cache.version:
            self._seen = self._cache.version
            found = self._cache.take(tokens, len(tokens) - 1)
            unused: Prefix | None = found
            if found.length > len(slots):
                own = slots.clear()[self._length :]
                slots.extend(found.slots())
                self.hits = found.length
                unused, self._held = self._held, found
            if unused is not None:
                self._cache.release(unused)
        return own

    def leave(self, tokens: Sequence[int], slots: SlotList) -> None:
        """Leave the slots of all computed tokens to others, and go on reading them."""
        if self.leaves:
            computed = slots.clear()
            held = self._held or self._cache.take((), 0)
            end = min(len(tokens), len(computed))
            self._held = self._cache.extend(held, tokens[:end], computed[:end])
            slots.extend(self._held.slots())
            slots.extend(computed[end:])

    def give_up(self, slots: SlotList) -> np.ndarray:
        """Read nothing any more: forget all slots, and return the sequence's own, int64."""
        own = slots.clear()[self._length :]
        if self._held is not None:
            self._cache.release(self._held)
        self._held, self._seen, self.hits = None, -1, 0
        return own

    def count(self, tokens: int) -> None:
        """Count a sequence that began with so many tokens."""
        if self.takes:
            self._cache.count(tokens - 1, self.hits)

    @property
    def _length(self) -> int:
        return 0 if self._held is None else self._held.length
