"""The prefix cache: KV slots of tokens that were computed before, found again by the tokens before them.

The keys and values of a token depend on itself and on the tokens before it, so whoever begins with the same tokens may
read the same slots. They lie in a radix tree: each stretch of tokens has their slots, and goes on in other stretches,
by their first token. Running sequences hold the path that they read. What nobody holds stays until somebody needs its
slots: the pool takes it for free (see `SlotReserve`), and what was let go first goes first, ends before beginnings.

A slot in the tree is never written again while it is there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from speculative_engine.kv.kv_slots import SlotPool


class _Stretch:
    """Tokens that follow each other, with their slots. A new one for every place where texts part."""

    __slots__ = ("children", "parent", "slots", "tokens", "users")

    def __init__(self, tokens: list[int], slots: np.ndarray, parent: _Stretch | None):
        self.tokens = tokens
        self.slots = slots
        self.parent = parent
        self.children: dict[int, _Stretch] = {}
        """By their first tokens."""
        self.users = 0
        """How many hold it, or one behind it."""


class Prefix:
    """Leading tokens that somebody holds in the cache, until it is released."""

    __slots__ = ("end", "length")

    def __init__(self, end: _Stretch, length: int):
        self.end = end
        self.length = length
        """Number of tokens."""

    def slots(self) -> np.ndarray:
        """The tokens' slots, int64 [length]."""
        path: list[np.ndarray] = []
        stretch: _Stretch | None = self.end
        while stretch is not None:
            path.append(stretch.slots)
            stretch = stretch.parent
        return np.concatenate(path[::-1])


class PrefixCache:
    """A `SlotReserve` of its pool. Slots that are held count as the pool's taken ones, once however many hold them."""

    def __init__(self, pool: SlotPool):
        self.idle = 0
        """Slots that nobody holds."""
        self.version = 0
        """Grows whenever there is more to be found."""
        self.queried_tokens = 0
        """Tokens that sequences looked for."""
        self.hit_tokens = 0
        """Those of them that they found."""
        self.evicted_tokens = 0
        """Tokens that have made room for others."""
        self._pool = pool
        self._root = _Stretch([], np.empty(0, dtype=np.int64), None)
        self._root.users = 1  # never idle
        self._idle: OrderedDict[_Stretch, None] = OrderedDict()
        # Stretches that nobody holds, in the order they were let go. Whoever holds a stretch holds those before it, so
        # each comes after all that go on from it: the first one is always an end.
        pool.lean_on(self)

    def take(self, tokens: Sequence[int], end: int) -> Prefix:
        """Hold as much as is there of the first `end` tokens."""
        stretch, length = self._walk(self._root, tokens, 0, end)
        self._hold(stretch)
        return Prefix(stretch, length)

    def extend(self, prefix: Prefix, tokens: Sequence[int], slots: np.ndarray) -> Prefix:
        """Have all `tokens`, of which `prefix` is the beginning, held instead of it. Takes over their `slots`, int64.

        Where the tokens are there already their slots are those, and the given ones go back to the pool.
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

    def release(self, prefix: Prefix) -> None:
        """Hold a prefix no more. What nobody else holds can be evicted from now on."""
        stretch: _Stretch | None = prefix.end
        while stretch is not None:
            stretch.users -= 1
            if not stretch.users:
                self._idle[stretch] = None
                self.idle += len(stretch.slots)
            stretch = stretch.parent

    def count(self, queried: int, hits: int) -> None:
        """Count what a sequence looked for and what it found."""
        self.queried_tokens += queried
        self.hit_tokens += hits

    def evict(self, count: int) -> np.ndarray:
        """See SlotReserve.evict."""
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
        """The last stretch of the tokens from `start` on, below the given one, and where it ends; it is to be held."""
        while start < end and (child := stretch.children.get(tokens[start])) is not None:
            known = common_length(child.tokens, tokens[start : min(end, start + len(child.tokens))])
            start += known
            if known < len(child.tokens):
                return self._split(child, known), start
            stretch = child
        return stretch, start

    def _split(self, stretch: _Stretch, length: int) -> _Stretch:
        """Part a stretch in two; the new one is the first. Those that hold the old one hold both."""
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
    """How many tokens two lists begin with in common."""
    most = min(len(first), len(second))
    if first[:most] == second[:most]:
        return most
    return next(index for index in range(most) if first[index] != second[index])
