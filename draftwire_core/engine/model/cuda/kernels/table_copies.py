"""Kernels that copy within the device: listed slots to tables, tokens that earlier drafting steps found, and what rows
read next to them."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from draftwire_core.engine.model.cuda.work.slot_work import MOVE, PAGE


@triton.jit(do_not_specialize=["first"])
def move_slots_kernel(work, table, first, MOVE_SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """One program a move; see `move_slots`."""
    about = work + first + tl.program_id(0) * MOVE_SIZE
    source = tl.load(about)
    target = tl.load(about + 1)
    count = tl.load(about + 2)
    at = tl.arange(0, BLOCK)
    slots = tl.load(work + source + at, mask=at < count, other=0)
    tl.store(table + target + at, slots, mask=at < count)


def move_slots(work: Tensor, table: Tensor, first: int, moves: int) -> None:
    """Copies ranges of `work` to `table`, int32 both.

    first: where in `work` the moves are listed, three numbers each: index in `work`, index in `table`, and number of
    slots, at most a page's.
    """
    move_slots_kernel[moves,](work, table, first, MOVE_SIZE=MOVE, BLOCK=PAGE, num_warps=4)


@triton.jit(do_not_specialize=["rows"])
def take_tokens_kernel(ranked, sources, tokens, rows, ROWS: tl.constexpr):
    """One program for all; see `take_tokens`."""
    row = tl.arange(0, ROWS)
    inside = row < rows
    source = tl.load(sources + row, mask=inside, other=-1)
    known = source >= 0
    found = tl.load(ranked + tl.where(known, source, 0), mask=known, other=0).to(tl.int64)
    # No token, where logits are spoilt: what follows is not used, but it must be in the vocabulary.
    tl.store(tokens + row, tl.maximum(found, 0), mask=known)


def take_tokens(ranked: Tensor, sources: Tensor, tokens: Tensor) -> None:
    """Writes to `tokens`, int64 [rows], the elements of `ranked`, int32, with the indices `sources`, int64 [rows].

    Where these are -1 the tokens stay as they are.
    """
    rows = len(sources)
    take_tokens_kernel[1,](ranked, sources, tokens, rows, ROWS=triton.next_power_of_2(rows), num_warps=1)


@triton.jit
def feed_rows_kernel(own, features, reads, into, width, BLOCK: tl.constexpr):
    """One program a row; see `feed_rows`."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    read = tl.load(reads + row)
    fed = read >= 0
    mine = tl.load(own + tl.where(fed, read, 0) * width + at, mask=fed & (at < width), other=0.0)
    given = tl.load(features + tl.where(fed, 0, -1 - read) * width + at, mask=(at < width) & (read < 0), other=0.0)
    tl.store(into + row * width + at, tl.where(fed, mine, given), mask=at < width)


def feed_rows(own: Tensor, features: Tensor, reads: Tensor, into: Tensor) -> None:
    """Writes to `into` [rows, width] the rows of two tables with the indices `reads`, int64 [rows]: those of `own`, or
    where they are negative those of `features` at -1 minus the index."""
    width = into.shape[1]
    block = triton.next_power_of_2(width)
    feed_rows_kernel[len(reads),](own, features, reads, into, width, BLOCK=block, num_warps=8)
