"""The slot queue: admission of sequences to KV slots in order of arrival, and preemption of the youngest.

No slots are reserved. A sequence is admitted when its tokens fit and a little stays free for all to grow. If that was
too optimistic, the youngest gives up its slots, keeps its tokens, and waits at the front of the queue to be recomputed.
Running and waiting sequences thus always stay in order of arrival, and the oldest is never preempted: it advances with
every step, ends, and makes the next one the oldest.

If sequences have several owners, this order holds within each owner. The next sequence admitted belongs to the owner
with the least use relative to its share, and the next one preempted to the owner with the most. Shares follow max-min
fairness over the total demand. A sequence within its owner's share takes precedence over all others and reclaims
borrowed slots: the youngest sequences of owners above their share give way. The last sequence of a name never does, so
shares are exact to within one sequence.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from itertools import chain
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from draftwire_core.engine.kv.fair_shares import SOLE, ServedVerifier, max_min
from draftwire_core.engine.kv.kv_slots import SlotPool

_GROWTH = 16
"""Fewest tokens that a sequence should gain before it may be preempted."""


class SlotHolder(Protocol):
    """A sequence as the queue sees it."""

    @property
    def length(self) -> int:
        """Number of committed tokens."""

    @property
    def pending(self) -> int:
        """Number of committed tokens that have not been through the model, and have no slot."""

    def give_up(self) -> np.ndarray:
        """Releases all KV slots and returns them, int64; the tokens stay."""


class SlotUse(NamedTuple):
    """The slot use of one owner."""

    running: int
    """Number of sequences that may hold slots."""
    waiting: int
    """Number of sequences waiting for slots."""
    slots: int
    """Number of slots that running sequences hold for committed tokens."""


KeyT = TypeVar("KeyT", bound=Hashable)
HolderT = TypeVar("HolderT", bound=SlotHolder)


class _Books(Generic[KeyT]):
    """A snapshot of slot use and entitlement by owner."""

    def __init__(self) -> None:
        self.running: dict[ServedVerifier, list[KeyT]] = {}
        """Running sequences, oldest first; only owners with running ones."""
        self.names: Counter[str] = Counter()
        """Number of running sequences of each name."""
        self.asked: dict[ServedVerifier, int] = {}
        """Slots for all sequences of each owner, including waiting ones."""
        self.taken: dict[ServedVerifier, int] = {}
        """Slots for the running sequences of each owner."""
        self.parts: dict[ServedVerifier, int] = {}
        """Number of slots that each owner is entitled to."""

    def fullness(self, owner: ServedVerifier) -> float:
        """Returns an owner's slots divided by its share; above 1 it borrows."""
        return self.taken[owner] / self.parts[owner]

    def within(self, owner: ServedVerifier, size: int) -> bool:
        """Whether an owner can take `size` more slots without borrowing."""
        return self.taken[owner] + size <= self.parts[owner]

    def fullest(self, owners: Iterable[ServedVerifier]) -> ServedVerifier | None:
        """Returns the fullest of these owners, or None; only owners whose name has more than one running sequence
        count."""
        several = [owner for owner in owners if self.running.get(owner) and self.names[owner.name] > 1]
        return max(several, key=self.fullness, default=None)


class SlotQueue(Generic[KeyT, HolderT]):
    """The sequences of one slot pool. Each must fit into the pool when it is alone."""

    def __init__(
        self,
        pool: SlotPool,
        tree_room: int,
        most_running: int | None = None,
        take_up: Callable[[HolderT], None] | None = None,
        owner: Callable[[HolderT], ServedVerifier] | None = None,
    ):
        """tree_room: slots reserved for a sequence's tree at admission. most_running: most running sequences; None for
        no limit. take_up: gives a sequence the slots of tokens that were computed for others. owner: returns the owner
        of a sequence; None if there is only one."""
        self.running: dict[KeyT, HolderT] = {}
        """Sequences that may hold slots; oldest first within each owner."""
        self.waiting: OrderedDict[KeyT, HolderT] = OrderedDict()
        """Sequences without slots, oldest first; each is younger than its owner's running ones."""
        self.preemptions = 0
        """Number of times a sequence gave up slots to others."""
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
        """Number of slots that other work may borrow: those left when the running sequences, and the next one to be
        admitted, have theirs and room to grow. Negative if these sequences lack slots themselves."""
        wanting = list(self.running.values())
        lacking = sum(holder.pending for holder in wanting)
        if self.waiting and (self._most_running is None or len(self.running) < self._most_running):
            wanting.append(self.waiting[self._next()])
            lacking += wanting[-1].length
        return self._pool.free - lacking - self._room * len(wanting)

    def find(self, key: KeyT) -> HolderT | None:
        """Returns the sequence of this key, or None."""
        holder = self.running.get(key)
        return self.waiting.get(key) if holder is None else holder

    def add(self, key: KeyT, holder: HolderT) -> None:
        """Queues a sequence whose key is unused."""
        self.waiting[key] = holder
        self.admit()

    def remove(self, key: KeyT) -> None:
        """Removes a sequence and reclaims its slots; unknown keys are ignored."""
        holder = self.running.pop(key, None)
        if holder is not None:
            self._pool.give_back(holder.give_up())
        else:
            self.waiting.pop(key, None)
        self.admit()

    def admit(self) -> None:
        """Admits waiting sequences, in order, while their tokens fit next to what the running ones still lack."""
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
        """Preempts the youngest sequence of the fullest owner, one by one, until the remaining ones have the slots they
        need."""
        while len(self.running) > 1 and self._pool.free < needed():
            self._preempt(self._last())

    def use(self) -> dict[ServedVerifier, SlotUse]:
        """Returns the slot use of each owner. Safe to call from another thread, where the figures are approximate."""
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
        """Returns how often each owner's sequences gave up slots since the last call."""
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
            if self._owner is not None:  # never read with a single owner
                self._preempted[self._owner(holder)] += 1
        self.waiting[key] = holder
        self.waiting.move_to_end(key, last=False)

    def _next(self) -> KeyT:
        """Returns the oldest waiting sequence of the owner to admit next.

        Owners within their share come first, then owners whose name has no running sequence, then the least full.
        """
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
        """Returns the youngest running sequence of the fullest owner."""
        books = self._books()
        owner = books.fullest(books.running)
        return next(reversed(self.running)) if owner is None else books.running[owner][-1]

    def _in_the_way(self, holder: HolderT) -> list[KeyT] | None:
        """Returns the sequences to preempt so that a waiting one can run; None if it has to wait."""
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
        """Yields the running sequences of others that borrow from a waiting sequence's owner, the youngest of the
        fullest owner first."""
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
