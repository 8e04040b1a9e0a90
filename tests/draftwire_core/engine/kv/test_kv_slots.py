"""Slots are handed out once, come back completely, and have one owner."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.kernels.kv_rows import rounded
from draftwire_core.engine.kv.kv_slots import (
    PADDING_SLOT,
    SLOT_BLOCK,
    KvCache,
    KvDtypeError,
    OutOfSlotsError,
    SlotList,
    SlotPool,
)


@given(st.lists(st.integers(min_value=0, max_value=12), max_size=40), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_no_slot_has_two_owners(sizes: list[int], rng) -> None:
    pool = SlotPool(50)
    owned: list[np.ndarray] = []
    for size in sizes:
        if size <= pool.free and rng.random() < 0.7:
            owned.append(pool.take(size))
        elif owned:
            pool.give_back(owned.pop(rng.randrange(len(owned))))
        held = [slot for slots in owned for slot in slots.tolist()]
        assert len(set(held)) == len(held) == pool.used == 50 - pool.free
        assert all(1 <= slot <= 50 for slot in held)
        assert PADDING_SLOT not in held


def test_taking_too_many_takes_none() -> None:
    pool = SlotPool(5)
    pool.take(3)
    with pytest.raises(OutOfSlotsError, match="3 KV slots requested, 2 of 5 free"):
        pool.take(3)
    assert pool.free == 2
    assert pool.take(0).tolist() == []


def test_a_slot_given_back_twice_is_an_error() -> None:
    pool = SlotPool(3)
    slots = pool.take(2)
    pool.give_back(slots)
    with pytest.raises(ValueError, match="a returned KV slot is already free"):
        pool.give_back(slots)


def test_an_empty_pool_makes_no_sense() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        SlotPool(0)


def test_taken_slots_are_not_a_view_of_the_free_list() -> None:
    pool = SlotPool(4)
    first = pool.take(2)
    before = first.tolist()
    pool.give_back(pool.take(2))
    assert first.tolist() == before


@given(st.lists(st.integers(min_value=0, max_value=100), max_size=20))
@settings(max_examples=50, deadline=None)
def test_slot_list_reads_like_the_list_it_grew_from(sizes: list[int]) -> None:
    slots, expected = SlotList(), []
    for size in sizes:
        more = list(range(len(expected), len(expected) + size))
        slots.extend(more if size % 2 else np.array(more, dtype=np.int64))
        expected += more
        assert len(slots) == len(expected)
    assert slots.array().tolist() == expected
    assert slots.array().dtype == np.int64
    assert slots.clear().tolist() == expected
    assert len(slots) == 0


def test_cache_makes_each_layer_once_and_full_of_zeros() -> None:
    cache = KvCache(10)
    key, value = torch.ones(2, 3, 4), torch.ones(2, 3, 6, dtype=torch.bfloat16)
    keys, values = cache.layer(0, key, value)
    assert keys.shape == (2, 11, 4) and values.shape == (2, 11, 6) and values.dtype == torch.bfloat16
    assert not keys.any() and not values.any()
    assert cache.layer(0, key, value)[0] is keys
    assert cache.layers == 1
    assert cache.bytes == 2 * 11 * 4 * 4 + 2 * 11 * 6 * 2


def test_a_cache_in_8_bits_holds_8_5_bits_an_element() -> None:
    cache = KvCache(10, "q8_0")
    key, value = torch.randn(2, 3, 64), torch.randn(2, 3, 32).to(torch.bfloat16)
    keys, values = cache.write(0, torch.tensor([4, 1, 7]), key, value)
    assert torch.equal(keys[:, [4, 1, 7]], rounded(key)) and torch.equal(values[:, [4, 1, 7]], rounded(value))
    assert not keys[:, 0].any() and not values[:, 0].any()
    assert cache.bytes == 2 * 11 * (64 + 32) * 8.5 / 8
    beside = cache.empty(3)
    assert (beside.dtype, beside.capacity, beside.layers) == ("q8_0", 3, 0)
    with pytest.raises(KvDtypeError, match="keys of layer 1 have 80 elements a head, and q8_0 needs a multiple of 32"):
        cache.write(1, torch.tensor([1]), torch.ones(2, 1, 80), value)


def test_a_cache_in_float16_keeps_to_its_range() -> None:
    cache = KvCache(10, "float16")
    key, value = torch.randn(2, 3, 16), torch.randn(2, 3, 16).to(torch.bfloat16)
    key[0, 0, 0], key[0, 0, 1], value[1, 2, 3] = 1e5, -torch.inf, torch.nan
    keys, values = cache.write(0, torch.tensor([4, 1, 7]), key, value)
    assert keys.dtype == values.dtype == torch.float16 and cache.bytes == 2 * 2 * 11 * 16 * 2
    assert (keys[0, 4, 0], keys[0, 4, 1]) == (65504, -65504) and values[1, 7, 3].isnan()
    assert torch.equal(keys[1, [4, 1, 7]], key[1].half())
    assert cache.empty(3).dtype == "float16"


def test_sequences_that_grow_by_turns_have_their_slots_side_by_side() -> None:
    pool = SlotPool(SLOT_BLOCK * 16 - 1)
    sequences = [SlotList() for _ in range(4)]
    for _ in range(SLOT_BLOCK * 3):
        for slots in sequences:
            slots.extend(pool.take(1, slots.last))
    for slots in sequences:
        breaks = np.flatnonzero(np.diff(slots.array()) != 1)
        assert len(breaks) <= 3


def test_what_was_rejected_is_filled_before_another_stretch_begins() -> None:
    pool = SlotPool(SLOT_BLOCK * 8 - 1)
    first = pool.take(5)
    pool.give_back(first[[2, 4]])
    assert pool.take(3, int(first[1])).tolist() == [3, 5, 6]


def test_without_whole_stretches_others_are_shared() -> None:
    pool = SlotPool(SLOT_BLOCK * 2 - 1)
    taken = [pool.take(1), pool.take(1)]
    assert {int(slots[0]) // SLOT_BLOCK for slots in taken} == {0, 1}
    assert len(pool.take(pool.free)) == SLOT_BLOCK * 2 - 3
    assert pool.free == 0


def test_a_reserve_gives_back_a_stretch_at_a_time() -> None:
    class Reserve:
        def __init__(self, slots: np.ndarray) -> None:
            self.slots = slots

        @property
        def idle(self) -> int:
            return len(self.slots)

        def evict(self, count: int) -> np.ndarray:
            self.slots, evicted = self.slots[:-count], self.slots[-count:]
            return evicted

    pool = SlotPool(SLOT_BLOCK * SLOT_BLOCK)
    reserve = Reserve(pool.take(pool.free))
    pool.lean_on(reserve)
    assert len(pool.take(1)) == 1
    assert (reserve.idle, pool.free) == (SLOT_BLOCK * SLOT_BLOCK - SLOT_BLOCK, SLOT_BLOCK * SLOT_BLOCK - 1)
    assert len(pool.take(pool.free)) == SLOT_BLOCK * SLOT_BLOCK - 1
