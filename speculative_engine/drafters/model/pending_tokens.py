"""Committed tokens that a draft model has yet to see."""

from __future__ import annotations

from collections.abc import Sequence

from speculative_engine.kv.kv_slots import SlotList, SlotPool
from speculative_engine.model.packed_batch import BatchBuilder


def add_pending(builder: BatchBuilder, pool: SlotPool, tokens: Sequence[int], slots: SlotList, count: int) -> bool:
    """Add the rows of the next `count` tokens of a sequence, whose leading ones have `slots`, which grow by as many.

    Returns whether they reach the last token; only that one's row has logits.
    """
    start = len(slots)
    end = start + count
    taken = pool.take(count, slots.last)
    reaches = end == len(tokens)
    rows = [
        builder.add_row(tokens[at], at, int(slot), reaches and at == end - 1)
        for at, slot in zip(range(start, end), taken, strict=True)
    ]
    builder.add_lane(slots.array().copy(), rows)
    slots.extend(taken)
    return reaches
