"""Adds up the parts of each row's attention, in order of position."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from draftwire_core.engine.model.cuda.kernels.numbers import narrowed, widened

BLOCK_PARTS = 16
"""Parts that are added up at once."""
_ELEMENTS = 2048
"""Elements that a program adds up at once."""
OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def number_of(position, SHORT: tl.constexpr, LONG: tl.constexpr, LONG_FROM: tl.constexpr):
    """The number of the part that a position belongs to; see `parts.part_of`."""
    shortened: tl.constexpr = LONG_FROM // SHORT - LONG_FROM // LONG
    return tl.where(position < LONG_FROM, position // SHORT, position // LONG + shortened)


@triton.jit(do_not_specialize=["first_place"])
def attention_sum_kernel(
    tops,
    totals,
    sums,
    sinks,
    asked,
    out,
    first_place,
    heads,
    window,
    VALUE_DIM: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    HEADS: tl.constexpr,
    SUNK: tl.constexpr,
    WINDOWED: tl.constexpr,
    ASKED_SIZE: tl.constexpr,
    SHORT: tl.constexpr,
    LONG: tl.constexpr,
    LONG_FROM: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One program a place of queries and some heads; see `attend_slots`."""
    told = asked + (first_place + tl.program_id(0)) * ASKED_SIZE
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    real = head < heads
    row = tl.load(told).to(tl.int64)
    position = tl.load(told + 2)
    partial = tl.load(told + 3).to(tl.int64)
    value_dim = tl.arange(0, BLOCK_VALUE)
    part = tl.arange(0, PARTS)
    last = number_of(position, SHORT, LONG, LONG_FROM)
    first = last * 0
    if WINDOWED:
        first = number_of(tl.maximum(position - window + 1, 0), SHORT, LONG, LONG_FROM)
    begin = first // PARTS * PARTS
    top = tl.full([HEADS], float("-inf"), tl.float32)
    if SUNK:
        sink = widened(tl.load(sinks + head, mask=real, other=0.0))
        top = sink
    for block in range(begin, last + 1, PARTS):
        at = block + part
        mine = ((at >= first) & (at <= last))[:, None] & real[None, :]
        at_partial = (partial + at)[:, None] * heads + head[None, :]
        top = tl.maximum(top, tl.max(tl.load(tops + at_partial, mask=mine, other=float("-inf")), 0))
    total = tl.zeros([HEADS], tl.float32)
    if SUNK:
        total = tl.exp(sink - top)
    summed = tl.zeros([HEADS, BLOCK_VALUE], tl.float32)
    for block in range(begin, last + 1, PARTS):
        at = block + part
        mine = ((at >= first) & (at <= last))[:, None] & real[None, :]
        at_partial = (partial + at)[:, None] * heads + head[None, :]
        shares = tl.exp(tl.load(tops + at_partial, mask=mine, other=float("-inf")) - top[None, :])
        total += tl.sum(shares * tl.load(totals + at_partial, mask=mine, other=0.0), 0)
        terms = tl.load(
            sums + at_partial[:, :, None] * VALUE_DIM + value_dim[None, None, :],
            mask=mine[:, :, None] & (value_dim < VALUE_DIM)[None, None, :],
            other=0.0,
        )
        summed += tl.sum(shares[:, :, None] * terms, 0)
    attended = tl.where(position < 0, 0.0, summed / total[:, None])
    tl.store(
        out + (row * heads + head)[:, None] * VALUE_DIM + value_dim[None, :],
        narrowed(attended, out.dtype.element_ty),
        mask=real[:, None] & (value_dim < VALUE_DIM)[None, :],
    )


def heads_together(heads: int, block_value: int) -> int:
    """Heads of a program."""
    return int(min(triton.next_power_of_2(heads), max(1, _ELEMENTS // (BLOCK_PARTS * block_value))))
