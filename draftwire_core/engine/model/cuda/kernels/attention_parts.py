"""Attention of rows over parts of their sequences, with keys and values read in place, by slot.

Positions are cut by absolute position into parts, and parts into tiles. A row's sums within a part go from tile to
tile, with a tile as one product, so they depend on the row's own keys alone: keys that a row does not see add exact
zeros. Rows of one sequence share the tiles before its committed end. Those after it belong to a lane each, since a node
of a tree has a path of its own; the other rows of the program see nothing of them.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from draftwire_core.engine.model.cuda.kernels.numbers import multiplied, narrowed
from draftwire_core.engine.model.cuda.kernels.scaled_rows import EIGHT_BITS, read_scaled

_FEW = 128
"""Elements of a head whose sums four warps have registers for, and two of whose tiles fit into the 99 KB of shared
memory that all GPUs have."""


def options_of(block_dim: int) -> dict[str, Any]:
    """Options of the kernel, by the elements of a head's block.

    Products and sums are not fused, since which ones would be is the compiler's choice in each kernel.
    """
    warps, stages = (4, 3) if block_dim <= _FEW else (8, 2)
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}


@triton.jit
def read_rows(stored, scales, slot, head, dtype: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr):
    """Keys or values of a head, [slots, SIZE], zeros beyond DIM; those of 8 bits in `dtype`. slot [slots, 1]: where
    slots begin."""
    if stored.dtype.element_ty == EIGHT_BITS:
        return read_scaled(stored, scales, slot, head, dtype, DIM, SIZE)
    else:
        dim = tl.arange(0, SIZE)[None, :]
        return tl.load(stored + slot + head * DIM + dim, mask=dim < DIM, other=0.0)


@triton.jit
def attention_parts_kernel(
    query,
    keys,
    values,
    key_scales,
    value_scales,
    tops,
    totals,
    sums,
    ranges,
    items,
    segments,
    asked,
    seen,
    tables,
    query_row,
    query_head,
    key_slot,
    value_slot,
    heads,
    scaling,
    softcap,
    window,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    QUERIES: tl.constexpr,
    CAPPED: tl.constexpr,
    WINDOWED: tl.constexpr,
    ITEM_SIZE: tl.constexpr,
    SEGMENT_SIZE: tl.constexpr,
    IN_TABLES: tl.constexpr,
    ASKED_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
):
    """One program a key-value head and every so many items; see `attend_slots`."""
    kv_head = tl.program_id(1)
    place = tl.arange(0, QUERIES)
    dim = tl.arange(0, BLOCK_DIM)
    value_dim = tl.arange(0, BLOCK_VALUE)
    key = tl.arange(0, KEYS)
    head = kv_head * GROUP + place % GROUP
    nothing = tl.zeros([QUERIES, KEYS], tl.float32)
    last_item = tl.load(ranges + 1)
    for item in range(tl.load(ranges) + tl.program_id(0), last_item, tl.num_programs(0)):
        about = items + item * ITEM_SIZE
        first_place = tl.load(about)
        count = tl.load(about + 1)
        first_segment = tl.load(about + 2)
        last_segment = tl.load(about + 3)
        part = tl.load(about + 4)
        lowest = tl.load(about + 5)
        real = place < count * GROUP
        asked_at = asked + (first_place + place // GROUP) * ASKED_SIZE
        row = tl.load(asked_at, mask=real, other=0).to(tl.int64)
        lane = tl.load(asked_at + 1, mask=real, other=-2)
        position = tl.load(asked_at + 2, mask=real, other=-1)
        partial = tl.load(asked_at + 3, mask=real, other=0).to(tl.int64) + part
        asks = tl.load(
            query + row[:, None] * query_row + head[:, None] * query_head + dim[None, :],
            mask=real[:, None] & (dim < DIM)[None, :],
            other=0.0,
        )
        top = tl.full([QUERIES], float("-inf"), tl.float32)
        total = tl.zeros([QUERIES], tl.float32)
        summed = tl.zeros([QUERIES, BLOCK_VALUE], tl.float32)
        for segment in range(first_segment, last_segment):
            told = segments + segment * SEGMENT_SIZE
            base = tl.load(told)
            first = tl.load(told + 1)
            last = tl.load(told + 2)
            owner = tl.load(told + 3)
            listed = tl.where(owner == IN_TABLES, tables, seen) + base
            if WINDOWED:
                first = tl.maximum(first, (lowest - window + 1) // KEYS * KEYS)
            # One tile ahead: a tile's keys are then loaded without waiting for its slots.
            slot = tl.load(listed + first + key, mask=first + key < last, other=0).to(tl.int64)
            for begin in range(first, last, KEYS):
                at = begin + key
                inside = at < last
                stored = read_rows(keys, key_scales, slot[:, None] * key_slot, kv_head, asks.dtype, DIM, BLOCK_DIM)
                carried = read_rows(
                    values, value_scales, slot[:, None] * value_slot, kv_head, asks.dtype, VALUE_DIM, BLOCK_VALUE
                )
                slot = tl.load(listed + at + KEYS, mask=at + KEYS < last, other=0).to(tl.int64)
                scores = multiplied(asks, tl.trans(stored), nothing) * scaling
                if CAPPED:
                    scores = softcap * (1.0 - 2.0 / (tl.exp(scores * (2.0 / softcap)) + 1.0))
                visible = inside[None, :] & (at[None, :] <= position[:, None])
                visible = visible & ((owner < 0) | (lane == owner))[:, None]
                if WINDOWED:
                    visible = visible & (at[None, :] > position[:, None] - window)
                scores = tl.where(visible, scores, float("-inf"))
                higher = tl.maximum(top, tl.max(scores, 1))
                known = tl.where(higher == float("-inf"), 0.0, higher)
                kept = tl.exp(top - known)
                weights = tl.exp(scores - known[:, None])
                total = total * kept + tl.sum(weights, 1)
                summed = multiplied(narrowed(weights, carried.dtype), carried, summed * kept[:, None])
                top = higher
        at_partial = partial * heads + head
        tl.store(tops + at_partial, top, mask=real)
        tl.store(totals + at_partial, total, mask=real)
        tl.store(
            sums + at_partial[:, None] * VALUE_DIM + value_dim[None, :],
            summed,
            mask=real[:, None] & (value_dim < VALUE_DIM)[None, :],
        )
