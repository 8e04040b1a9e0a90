"""Who holds KV slots and who waits for them: admission in order of arrival, preemption of the youngest.

Nobody's slots are reserved. A sequence is let in when its tokens fit and a little stays free for all to grow; where
that was too hopeful, the youngest gives up its slots, keeps its tokens, and waits at the front to be computed again.
So those that run and those that wait are always in the order they came in, and the oldest is never preempted: it
makes progress with every step, ends, and makes the next one the oldest.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Generic, Protocol, TypeVar

import numpy as np

from speculative_engine.kv_slots import SlotPool

_GROWTH = 16
"""Tokens that a sequence is to gain before it may come to preemption, at least."""


class SlotHolder(Protocol):
    """A sequence as the queue sees it."""

    @property
    def length(self) -> int:
        """Committed tokens."""

    @property
    def pending(self) -> int:
        """Committed tokens that have not been through the model, and have no slot."""

    def give_up(self) -> np.ndarray:
        """Forget all KV slots and return them, int64; the tokens stay."""


KeyT = TypeVar("KeyT", bound=Hashable)
HolderT = TypeVar("HolderT", bound=SlotHolder)


class SlotQueue(Generic[KeyT, HolderT]):
    """The sequences of one pool of slots. Each of them must fit into the pool when it is alone."""

    def __init__(
        self,
        pool: SlotPool,
        tree_room: int,
        most_running: int | None = None,
        take_up: Callable[[HolderT], None] | None = None,
    ):
        """tree_room: slots that a sequence's tree is given at admission. most_running: None for any number. take_up:
        gives a sequence the slots of those of its tokens that were computed for others."""
        self.running: dict[KeyT, HolderT] = {}
        """May hold slots; oldest first."""
        self.waiting: OrderedDict[KeyT, HolderT] = OrderedDict()
        """Hold none; all younger than those that run, oldest first."""
        self.preemptions = 0
        """Times a sequence gave up slots to others."""
        self._pool = pool
        self._room = max(tree_room, _GROWTH)
        self._most_running = most_running
        self._take_up = take_up

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting)

    def __iter__(self) -> Iterator[HolderT]:
        return chain(self.running.values(), self.waiting.values())

    @property
    def spare(self) -> int:
        """Slots that others may take for a while: free beside what those that run, and the one to be let in next, lack,
        with room for each to grow. Negative where they lack slots themselves."""
        wanting = list(self.running.values())
        lacking = sum(holder.pending for holder in wanting)
        if self.waiting and (self._most_running is None or len(self.running) < self._most_running):
            wanting.append(next(iter(self.waiting.values())))
            lacking += wanting[-1].length
        return self._pool.free - lacking - self._room * len(wanting)

    def find(self, key: KeyT) -> HolderT | None:
        """A sequence, None if there is none of this key."""
        holder = self.running.get(key)
        return self.waiting.get(key) if holder is None else holder

    def add(self, key: KeyT, holder: HolderT) -> None:
        """Queue a sequence whose key is free."""
        self.waiting[key] = holder
        self.admit()

    def remove(self, key: KeyT) -> None:
        """Take a sequence out and its slots back; does nothing if there is none of this key."""
        holder = self.running.pop(key, None)
        if holder is not None:
            self._pool.give_back(holder.give_up())
        else:
            self.waiting.pop(key, None)
        self.admit()

    def admit(self) -> None:
        """Let waiting sequences run, in order, while their tokens fit beside what the running ones still lack."""
        while self.waiting and (self._most_running is None or len(self.running) < self._most_running):
            key, holder = next(iter(self.waiting.items()))
            if self._take_up is not None:
                self._take_up(holder)
            lacking = sum(other.pending for other in self.running.values())
            room = self._room * (len(self.running) + 1)
            if self.running and self._pool.free < lacking + holder.pending + room:
                if holder.pending < holder.length:
                    self._pool.give_back(holder.give_up())
                return
            self.running[key] = self.waiting.pop(key)

    def make_room(self, needed: Callable[[], int]) -> None:
        """Preempt the youngest, one by one, until the slots that those who still run need are free."""
        while len(self.running) > 1 and self._pool.free < needed():
            key, holder = self.running.popitem()
            free = self._pool.free
            self._pool.give_back(holder.give_up())
            self.preemptions += self._pool.free > free
            self.waiting[key] = holder
            self.waiting.move_to_end(key, last=False)
