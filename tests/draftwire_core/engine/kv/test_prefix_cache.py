"""The prefix cache against a plain model: hits, holders and eviction order; no slot is lost or doubled."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from draftwire_core.engine.kv.kv_slots import OutOfSlotsError, SlotPool
from draftwire_core.engine.kv.prefix_cache import Prefix, PrefixCache, common_length
from draftwire_core.engine.kv.recurrent_states import RecurrentStates

TEXTS = st.lists(st.integers(0, 2), max_size=8)
CAPACITY = 24


class Machine(RuleBasedStateMachine):
    """The plain model knows every cached prefix, the slot of its last token, and its holders."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(CAPACITY)
        self.cache = PrefixCache(self.pool)
        self.slots: dict[tuple[int, ...], int] = {}
        self.held: list[tuple[Prefix, tuple[int, ...]]] = []
        self.owned: list[int] = []
        """Slots that were taken from the pool for other purposes."""

    def found(self, text: list[int]) -> tuple[int, ...]:
        """Returns the longest cached prefix of a text."""
        lengths = range(len(text), 0, -1)
        return next((tuple(text[:length]) for length in lengths if tuple(text[:length]) in self.slots), ())

    def path(self, text: tuple[int, ...]) -> list[int]:
        return [self.slots[text[: end + 1]] for end in range(len(text))]

    def forget_evicted(self) -> None:
        """Forgets prefixes whose slots the pool has handed out: they are no longer cached."""
        owned = set(self.owned)
        gone = {text for text, slot in self.slots.items() if slot in owned}
        for text in gone:
            assert not any(held[: len(text)] == text for _, held in self.held), "nobody loses what he holds"
            del self.slots[text]

    def get(self, count: int) -> np.ndarray:
        slots = self.pool.take(count)
        self.owned += slots.tolist()
        self.forget_evicted()
        return slots

    @rule(text=TEXTS, cut=st.integers(0, 8))
    def take(self, text: list[int], cut: int) -> None:
        end = min(cut, len(text))
        prefix = self.cache.take(text, end)
        expected = self.found(text[:end])
        assert prefix.length == len(expected)
        assert prefix.slots().tolist() == self.path(expected)
        self.held.append((prefix, expected))

    @precondition(lambda self: self.held)
    @rule(text=TEXTS, data=st.data())
    def extend(self, text: list[int], data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.held) - 1))
        prefix, before = self.held[index]
        tokens = [*before, *text]
        if len(text) > self.pool.free:
            return
        own = self.get(len(text))
        known = len(self.found(tokens))
        for end in range(max(known, len(before)), len(tokens)):
            self.slots[tuple(tokens[: end + 1])] = int(own[end - len(before)])
        for slot in own.tolist():
            self.owned.remove(slot)
        extended = self.cache.extend(prefix, tokens, np.concatenate([prefix.slots(), own]))
        assert extended.length == len(tokens)
        assert extended.slots().tolist() == self.path(tuple(tokens))
        self.held[index] = (extended, tuple(tokens))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        prefix, _ = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.cache.release(prefix)

    @rule(count=st.integers(0, 10))
    def need(self, count: int) -> None:
        if count > self.pool.free:
            with pytest.raises(OutOfSlotsError):
                self.pool.take(count)
        else:
            assert len(set(self.get(count).tolist())) == count

    @precondition(lambda self: self.owned)
    @rule()
    def give_back(self) -> None:
        self.pool.give_back(self.owned)
        self.owned.clear()

    @invariant()
    def slots_add_up(self) -> None:
        held = {slot for _, text in self.held for slot in self.path(text)}
        idle = set(self.slots.values()) - held
        assert self.cache.idle == len(idle)
        assert len(self.slots) == len(set(self.slots.values()))
        assert not set(self.slots.values()) & set(self.owned)
        assert self.pool.used == len(held) + len(self.owned)
        for prefix, text in self.held:
            assert prefix.slots().tolist() == self.path(text)

    def teardown(self) -> None:
        for prefix, _ in self.held:
            self.cache.release(prefix)
        self.pool.give_back(self.owned)
        assert self.pool.used == 0
        assert sorted(self.pool.take(CAPACITY).tolist()) == list(range(1, CAPACITY + 1))
        assert self.cache.idle == 0


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)


def left(cache: PrefixCache, pool: SlotPool, text: list[int]) -> list[int]:
    """Leaves a text in the cache; returns its slots."""
    prefix = cache.take(text, len(text))
    own = pool.take(len(text) - prefix.length)
    prefix = cache.extend(prefix, text, np.concatenate([prefix.slots(), own]))
    slots = prefix.slots().tolist()
    cache.release(prefix)
    return slots


def length(cache: PrefixCache, text: list[int]) -> int:
    prefix = cache.take(text, len(text))
    cache.release(prefix)
    return prefix.length


def test_what_was_used_last_goes_last_and_ends_go_before_beginnings() -> None:
    pool = SlotPool(12)
    cache = PrefixCache(pool)
    first, second = [1, 2, 3, 4], [1, 2, 5, 6]
    left(cache, pool, first)
    left(cache, pool, second)
    assert pool.free == 12 and length(cache, first) == 4  # this makes it the most recently used one
    pool.take(6 + 1)
    assert (length(cache, second), length(cache, first)) == (3, 4)
    pool.take(1 + 1)
    assert (length(cache, second), length(cache, first)) == (2, 3)
    assert cache.evicted_tokens == 3


def test_the_same_text_twice_has_one_set_of_slots() -> None:
    pool = SlotPool(12)
    cache = PrefixCache(pool)
    early, late = cache.take([], 0), cache.take([], 0)
    early = cache.extend(early, [1, 2, 3], pool.take(3))
    late = cache.extend(late, [1, 2, 3, 4], pool.take(4))  # computed in parallel with the other one
    assert late.slots().tolist()[:3] == early.slots().tolist()
    assert pool.used == 4
    cache.release(early)
    assert (cache.idle, pool.used) == (0, 4)
    cache.release(late)
    assert (cache.idle, pool.used) == (4, 0)


def test_a_match_without_a_state_puts_no_beginning_before_its_end() -> None:
    """A beginning that loses its last slots before what follows it would be followed by tokens of later positions."""
    pool = SlotPool(20)
    pool.states = RecurrentStates([], torch.float32, 20)
    cache = PrefixCache(pool)
    left(cache, pool, [1] * 3)
    slots = left(cache, pool, [1] * 6)
    assert length(cache, [1] * 5 + [2]) == 0, "no state is kept"
    taken = pool.take(20 - 6 + 2)
    pool.give_back([slot for slot in taken.tolist() if slot not in slots])
    again = left(cache, pool, [1] * 5)
    assert [slots.index(slot) for slot in again if slot in slots] == [0, 1, 2, 3]


def test_a_second_cache_takes_the_first_ones_place() -> None:
    pool = SlotPool(12)
    cache = PrefixCache(pool)
    left(cache, pool, [1, 2, 3])
    other = PrefixCache(pool)
    assert (pool.free, cache.idle, length(cache, [1])) == (12, 0, 0)
    left(other, pool, [4])
    assert len(set(pool.take(12).tolist())) == 12


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2], [1, 3], 1), ([2], [1], 0), ([1, 2, 3], [1, 2, 3], 3)],
)
def test_common_length(first: list[int], second: list[int], expected: int) -> None:
    assert common_length(first, second) == expected
