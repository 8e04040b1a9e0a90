"""The prefix cache: KV slots of tokens computed earlier, found again by the tokens before them.

The keys and values of a token depend only on the token and those before it, so sequences with a common prefix can read
the same slots. The cache is a radix tree: each node holds a stretch of tokens with their slots, and its children are
keyed by their first tokens. Running sequences hold the path they read. Unheld stretches stay until the pool needs their
slots, which it counts as free (see `SlotReserve`). Eviction takes the least recently released first, leaves before
their parents.

A slot in the tree is never rewritten while it is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from draftwire_core.engine.kv.kv_slots import SlotPool
from draftwire_core.engine.kv.recurrent_states import SequenceState


class _Stretch:
    """A run of consecutive tokens with their slots. Runs are split wherever texts diverge."""

    __slots__ = ("children", "parent", "slots", "tokens", "users")

    def __init__(self, tokens: list[int], slots: np.ndarray, parent: _Stretch | None):
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.children: dict[int, _Stretch] = {}
        """The children, by their first tokens."""
        self.users = 0
        """Number of holders of this stretch or of one below it."""


class Prefix:
    """Leading tokens that are held in the cache until they are released."""

    __slots__ = ("end", "length")

    def __init__(self, end: _Stretch, length: int):
        self.end = end
        self.length = length
        """Number of tokens."""

    def slots(self) -> np.ndarray:
        """Returns the tokens' slots, int64 [length]."""
        path: list[np.ndarray] = []
        stretch: _Stretch | None = self.end
        while stretch is not None:
            path.append(stretch.slots)
            stretch = stretch.parent
        return np.concatenate(path[::-1])


class PrefixCache:
    """A `SlotReserve` of its pool. Held slots count as taken from the pool, once however many sequences hold them."""

    def __init__(self, pool: SlotPool):
        self.idle = 0
        """Number of slots without a holder."""
        self.version = 0
        """Counter that increases whenever the cache gains tokens."""
        self.queried_tokens = 0
        """Number of tokens that sequences looked up."""
        self.hit_tokens = 0
        """Number of looked-up tokens that were found."""
        self.evicted_tokens = 0
        """Number of tokens evicted."""
        self._pool = pool
        self._root = _Stretch([], np.empty(0, dtype=np.int64), None)
        self._root.users = 1  # never idle
        self._idle: OrderedDict[_Stretch, None] = OrderedDict()
        # Stretches without a holder, in the order of their release. Holding a stretch holds its ancestors, so each
        # comes after all its descendants here, and the first one is always a leaf.
        pool.lean_on(self)

    def take(self, tokens: Sequence[int], end: int) -> Prefix:
        """Holds as many of the first `end` tokens as the cache has, and for a model with recurrent layers has a state
        after."""
        stretch, length = self._walk(self._root, tokens, 0, end)
        states = self._pool.states
        self._hold(stretch)
        found = Prefix(stretch, length)
        if states is not None and length:
            stretch, length = self._walk(self._root, tokens, 0, states.kept_length(found.slots()))
            self._hold(stretch)
            self.release(found)  # after being held, so that what the first walk has split off is in order, too
        return Prefix(stretch, length)

    def extend(self, prefix: Prefix, tokens: Sequence[int], slots: np.ndarray) -> Prefix:
        """Replaces a held prefix by all `tokens`, which begin with it. Takes ownership of their `slots`, int64.

        Tokens that the cache already has keep their cached slots, and the given ones return to the pool.
        """
        stretch, known = self._walk(prefix.end, tokens, prefix.length, len(tokens))
        self._pool.give_back(slots[prefix.length : known])
        if known < len(tokens):
            new = _Stretch(list(tokens[known:]), slots[known:].copy(), stretch)
            stretch.children[new.tokens[0]] = new
            self._idle[new] = None
            self.idle += len(new.slots)
            stretch = new
            self.version += 1
        self._hold(stretch)
        self.release(prefix)
        return Prefix(stretch, len(tokens))

    @property
    def needs_states(self) -> bool:
        """Whether the model has recurrent layers, so that a prefix ends where a state is kept."""
        return self._pool.states is not None

    def resume(self, state: SequenceState, slots: np.ndarray) -> None:
        """Moves a sequence's state to the one kept at the end of a prefix that was taken; does nothing in a model
        without recurrent layers. slots: the prefix's."""
        if self._pool.states is not None:
            self._pool.states.resume(state, slots)

    def keep(self, state: SequenceState, slots: np.ndarray) -> None:
        """Keeps the state of a sequence that ends or gives up its slots; `slots`: of its leading tokens."""
        if self._pool.states is not None and state.state is not None:
            self._pool.states.keep(int(slots[state.position - 1]), state.state)

    def most_stored(self, computed: int, state: SequenceState) -> int:
        """Number of a sequence's `computed` tokens that can be stored: those that its state comprises, in a model with
        recurrent layers."""
        return computed if self._pool.states is None else min(computed, state.position)

    def release(self, prefix: Prefix) -> None:
        """Releases a prefix. Stretches without another holder can be evicted from now on."""
        stretch: _Stretch | None = prefix.end
        while stretch is not None:
            stretch.users -= 1
            if not stretch.users:
                self._idle[stretch] = None
                self.idle += len(stretch.slots)
            stretch = stretch.parent

    def count(self, queried: int, hits: int) -> None:
        """Adds to the totals of looked-up and found tokens."""
        self.queried_tokens += queried
        self.hit_tokens += hits

    def evict(self, count: int) -> np.ndarray:
        """Gives up `count` slots without a holder, int64, least recently released first."""
        found: list[np.ndarray] = []
        wanted = count
        while wanted:
            stretch = next(iter(self._idle))
            keep = max(0, len(stretch.slots) - wanted)
            wanted -= len(stretch.slots) - keep
            found.append(stretch.slots[keep:])
            if keep:
                stretch.slots = stretch.slots[:keep]
                del stretch.tokens[keep:]
            else:
                assert stretch.parent is not None
                del self._idle[stretch]
                del stretch.parent.children[stretch.tokens[0]]
        self.idle -= count
        self.evicted_tokens += count
        return np.concatenate(found) if found else np.empty(0, dtype=np.int64)

    def _walk(self, stretch: _Stretch, tokens: Sequence[int], start: int, end: int) -> tuple[_Stretch, int]:
        """Returns the last stretch below the given one that matches tokens[start:end], and the end of the match.

        The caller must hold the stretch.
        """
        while start < end and (child := stretch.children.get(tokens[start])) is not None:
            known = common_length(child.tokens, tokens[start : min(end, start + len(child.tokens))])
            start += known
            if known < len(child.tokens):
                return self._split(child, known), start
            stretch = child
        return stretch, start

    def _split(self, stretch: _Stretch, length: int) -> _Stretch:
        """Splits a stretch in two and returns the first part, which is the new one. Holders of the old one hold
        both."""
        first = _Stretch(stretch.tokens[:length], stretch.slots[:length], stretch.parent)
        assert stretch.parent is not None
        stretch.parent.children[first.tokens[0]] = first
        stretch.tokens = stretch.tokens[length:]
        stretch.slots = stretch.slots[length:]
        stretch.parent = first
        first.children[stretch.tokens[0]] = stretch
        first.users = stretch.users
        if not first.users:
            self._idle[first] = None
        return first

    def _hold(self, stretch: _Stretch | None) -> None:
        while stretch is not None:
            if not stretch.users:
                del self._idle[stretch]
                self.idle -= len(stretch.slots)
            stretch.users += 1
            stretch = stretch.parent


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Returns the length of the common prefix of two token lists."""
    most = min(len(first), len(second))
    if first[:most] == second[:most]:
        return most
    return next(index for index in range(most) if first[index] != second[index])
