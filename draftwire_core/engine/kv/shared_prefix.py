"""One sequence's use of the prefix cache: the tokens it takes from it and the tokens it stores in it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwire_core.engine.kv.kv_slots import SlotList
from draftwire_core.engine.kv.prefix_cache import Prefix, PrefixCache
from draftwire_core.engine.kv.recurrent_states import SequenceState


class SharedPrefix:
    """Tracks which of a sequence's leading slots belong to the cache. The other slots are the sequence's own."""

    def __init__(self, cache: PrefixCache, *, takes: bool, leaves: bool):
        """takes: whether the sequence reads cached tokens. leaves: whether it stores its own tokens."""
        self.takes = takes
        self.leaves = leaves
        self.hits = 0
        """Number of tokens found since the sequence was last admitted."""
        self._cache = cache
        self._held: Prefix | None = None
        self._seen = -1
        """The cache's version at the last lookup."""

    @property
    def needs_states(self) -> bool:
        """Whether tokens can be read only where the cache keeps a state of recurrent layers."""
        return self._cache.needs_states

    def take(self, tokens: Sequence[int], slots: SlotList, state: SequenceState) -> np.ndarray:
        """Takes the longest cached prefix, except the last token, which must be computed for its logits.

        state: the sequence's, which moves to the end of the prefix in a model with recurrent layers.

        Returns the sequence's own slots, int64, that the prefix replaces.
        """
        own = slots.array()[:0]
        if self.takes and self._seen != self._cache.version:
            self._seen = self._cache.version
            found = self._cache.take(tokens, len(tokens) - 1)
            unused: Prefix | None = found
            if found.length > len(slots):
                own = slots.clear()[self._length :]
                slots.extend(found.slots())
                self._cache.resume(state, slots.array())
                self.hits = found.length
                unused, self._held = self._held, found
            if unused is not None:
                self._cache.release(unused)
        return own

    def leave(self, tokens: Sequence[int], slots: SlotList, state: SequenceState) -> None:
        """Stores all computed tokens in the cache and continues to read them from there.

        Tokens after the sequence's state, whose inputs recurrent layers still need, are not stored.
        """
        if self.leaves:
            computed = slots.clear()
            held = self._held or self._cache.take((), 0)
            end = self._cache.most_stored(min(len(tokens), len(computed)), state)
            self._held = self._cache.extend(held, tokens[:end], computed[:end])
            slots.extend(self._held.slots())
            slots.extend(computed[end:])

    def give_up(self, slots: SlotList, state: SequenceState) -> np.ndarray:
        """Releases the prefix and all slots; returns the sequence's own slots, int64. The cache keeps the state of
        recurrent layers after a stored token; `state` itself is left as it is."""
        if self.leaves and 0 < state.position <= self._length:
            self._cache.keep(state, slots.array())
        own = slots.clear()[self._length :]
        if self._held is not None:
            self._cache.release(self._held)
        self._held, self._seen, self.hits = None, -1, 0
        return own

    def count(self, tokens: int) -> None:
        """Counts the lookup of a sequence that began with this many tokens."""
        if self.takes:
            self._cache.count(tokens - 1, self.hits)

    @property
    def _length(self) -> int:
        return 0 if self._held is None else self._held.length
