"""Who holds KV slots and who waits for them: admission in order of arrival, preemption of the youngest.

Nobody's slots are reserved. A sequence is let in when its tokens fit and a little stays free for all to grow; where
that was too hopeful, the youngest gives up its slots, keeps its tokens, and waits at the front to be computed again.
So those that run and those that wait are always in the order they came in, and the oldest is never preempted: it
makes progress with every step, ends, and makes the next one the oldest.

Where sequences have several owners, all this is so for each owner's. Among owners whoever has least over its part is
let in next, and preempted is whoever has most. Parts are by max-min fairness over all that is asked for. A sequence
that is within its owner's part comes before all others and takes back what was borrowed: the youngest sequences of
those that have more than their part give way. Only the last one of a name does not, so parts are kept to within one
sequence.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from speculative_engine.kv.fair_shares import SOLE, ServedVerifier, max_min
from speculative_engine.kv.kv_slots import SlotPool

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


class SlotUse(NamedTuple):
    """What one owner has."""

    running: int
    """Sequences that may hold slots."""
    waiting: int
    """Sequences that wait for some."""
    slots: int
    """Held by running ones, for their committed tokens."""


KeyT = TypeVar("KeyT", bound=Hashable)
HolderT = TypeVar("HolderT", bound=SlotHolder)


class _Books(Generic[KeyT]):
    """Who has what, by owner, as it is now."""

    def __init__(self) -> None:
        self.running: dict[ServedVerifier, list[KeyT]] = {}
        """Oldest first; of owners that have some."""
        self.names: Counter[str] = Counter()
        """How many run of each name."""
        self.asked: dict[ServedVerifier, int] = {}
        """Slots for all sequences, waiting ones included; of all owners."""
        self.taken: dict[ServedVerifier, int] = {}
        """Slots for those that run."""
        self.parts: dict[ServedVerifier, int] = {}
        """Slots to which each is entitled."""

    def fullness(self, owner: ServedVerifier) -> float:
        """What it has, over its part: above 1 some of it is borrowed."""
        return self.taken[owner] / self.parts[owner]

    def within(self, owner: ServedVerifier, size: int) -> bool:
        """Whether an owner can have so many slots more without borrowing."""
        return self.taken[owner] + size <= self.parts[owner]

    def fullest(self, owners: Iterable[ServedVerifier]) -> ServedVerifier | None:
        """Of these, whose names each have more than one running sequence, who has most over its part."""
        several = [owner for owner in owners if self.running.get(owner) and self.names[owner.name] > 1]
        return max(several, key=self.fullness, default=None)


class SlotQueue(Generic[KeyT, HolderT]):
    """The sequences of one pool of slots. Each of them must fit into the pool when it is alone."""

    def __init__(
        self,
        pool: SlotPool,
        tree_room: int,
        most_running: int | None = None,
        take_up: Callable[[HolderT], None] | None = None,
        owner: Callable[[HolderT], ServedVerifier] | None = None,
    ):
        """tree_room: slots that a sequence's tree is given at admission. most_running: None for any number. take_up:
        gives a sequence the slots of those of its tokens that were computed for others. owner: whose a sequence is;
        None where all are one's."""
        self.running: dict[KeyT, HolderT] = {}
        """May hold slots; oldest first, of each owner."""
        self.waiting: OrderedDict[KeyT, HolderT] = OrderedDict()
        """Hold none; all younger than those of their owner that run, oldest first."""
        self.preemptions = 0
        """Times a sequence gave up slots to others."""
        self._pool = pool
        self._room = max(tree_room, _GROWTH)
        self._most_running = most_running
        self._take_up = take_up
        self._owner = owner
        self._preempted: Counter[ServedVerifier] = Counter()

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
            wanting.append(self.waiting[self._next()])
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
            key = self._next()
            holder = self.waiting[key]
            if self._take_up is not None:
                self._take_up(holder)
            in_the_way = self._in_the_way(holder)
            if in_the_way is None:
                if holder.pending < holder.length:
                    self._pool.give_back(holder.give_up())
                return
            for other in in_the_way:
                self._preempt(other)
            self.running[key] = self.waiting.pop(key)

    def make_room(self, needed: Callable[[], int]) -> None:
        """Preempt the youngest, of whoever has most, one by one, until the slots that those who still run need are
        free."""
        while len(self.running) > 1 and self._pool.free < needed():
            self._preempt(self._last())

    def use(self) -> dict[ServedVerifier, SlotUse]:
        """What each owner has. May be called from another thread; it is about right, then."""
        found: dict[ServedVerifier, SlotUse] = {}
        for runs, holders in ((1, [*self.running.values()]), (0, [*self.waiting.values()])):
            for holder in holders:
                owner = self._owner_of(holder)
                one = found.get(owner) or SlotUse(0, 0, 0)
                found[owner] = one._replace(
                    running=one.running + runs,
                    waiting=one.waiting + 1 - runs,
                    slots=one.slots + holder.length - holder.pending,
                )
        return found

    def take_preempted(self) -> Counter[ServedVerifier]:
        """By owner, how often its sequences gave up slots to others since this was asked last."""
        taken, self._preempted = self._preempted, Counter()
        return taken

    def _owner_of(self, holder: HolderT) -> ServedVerifier:
        return SOLE if self._owner is None else self._owner(holder)

    def _preempt(self, key: KeyT) -> None:
        holder = self.running.pop(key)
        free = self._pool.free
        self._pool.give_back(holder.give_up())
        if self._pool.free > free:
            self.preemptions += 1
            if self._owner is not None:  # else nobody asks
                self._preempted[self._owner(holder)] += 1
        self.waiting[key] = holder
        self.waiting.move_to_end(key, last=False)

    def _next(self) -> KeyT:
        """The oldest waiting sequence of whoever has least, of those first that are within their owner's part, and
        then of those whose name has no other."""
        if self._owner is None:
            return next(iter(self.waiting))
        oldest: dict[ServedVerifier, KeyT] = {}
        for key, holder in self.waiting.items():
            oldest.setdefault(self._owner_of(holder), key)
        if len(oldest) == 1:
            return next(iter(oldest.values()))
        books = self._books()

        def place(owner: ServedVerifier) -> tuple[bool, bool, float]:
            within = books.within(owner, self._size(self.waiting[oldest[owner]]))
            return not within, owner.name in books.names, books.fullness(owner)

        return oldest[min(oldest, key=place)]

    def _last(self) -> KeyT:
        """The youngest running sequence of whoever has most."""
        books = self._books()
        owner = books.fullest(books.running)
        return next(reversed(self.running)) if owner is None else books.running[owner][-1]

    def _in_the_way(self, holder: HolderT) -> list[KeyT] | None:
        """The sequences that have to give way for a waiting one to run; None if it has to wait."""
        free = self._pool.free - sum(other.pending for other in self.running.values())
        lacking = holder.pending + self._room * (len(self.running) + 1) - free
        if not self.running or lacking <= 0:
            return []
        giving_way: list[KeyT] = []
        for key in self._borrowed(holder):
            giving_way.append(key)
            lacking -= self.running[key].length + self._room
            if lacking <= 0:
                return giving_way
        return None

    def _borrowed(self, holder: HolderT) -> Iterator[KeyT]:
        """What others run with slots that a waiting sequence's owner is entitled to, the youngest of whoever has most
        first."""
        if self._owner is None:
            return
        books, owner = self._books(), self._owner_of(holder)
        # The only sequence of a name may run, whatever its size.
        if owner.name in books.names and not books.within(owner, self._size(holder)):
            return
        while True:
            other = books.fullest(each for each in books.running if each != owner and books.fullness(each) > 1)
            if other is None:
                return
            key = books.running[other].pop()
            books.names[other.name] -= 1
            books.taken[other] -= self._size(self.running[key])
            yield key

    def _size(self, holder: HolderT) -> int:
        return holder.length + self._room

    def _books(self) -> _Books[KeyT]:
        books: _Books[KeyT] = _Books()
        for key, holder in chain(self.running.items(), self.waiting.items()):
            owner = self._owner_of(holder)
            size = self._size(holder)
            books.asked[owner] = books.asked.get(owner, 0) + size
            books.taken.setdefault(owner, 0)
            if key in self.running:
                books.taken[owner] += size
                books.running.setdefault(owner, []).append(key)
                books.names[owner.name] += 1
        parts = max_min(books.asked, self._pool.capacity)
        books.parts = {each: max(1, math.ceil(part)) for each, part in parts.items()}
        return books
