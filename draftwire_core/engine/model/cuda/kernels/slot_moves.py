"""Copies slots that a step has listed into the tables that stay on the device."""

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
