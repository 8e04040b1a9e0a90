"""Attention of a step's rows by slots, as two kernels: parts, and their sums."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from draftwire_core.engine.device.gpu import processors
from draftwire_core.engine.kernels.kv_rows import elements
from draftwire_core.engine.model.cuda.kernels import attention_sum
from draftwire_core.engine.model.cuda.kernels.attention_parts import attention_parts_kernel, options_of
from draftwire_core.engine.model.cuda.kernels.attention_sum import BLOCK_PARTS, attention_sum_kernel
from draftwire_core.engine.model.cuda.kernels.scaled_rows import scales_of
from draftwire_core.engine.model.cuda.work.parts import LONG, LONG_FROM, SHORT
from draftwire_core.engine.model.cuda.work.slot_work import (
    ASKED,
    ITEM,
    RESIDENT,
    SEGMENT,
    TILE_KEYS,
    TILE_QUERIES,
    PlacedWork,
)

_LEAST_BLOCK = 16
"""The least inner size of a product, and the fewest rows that one instruction multiplies."""


def attend_slots(
    work: PlacedWork,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tiles: tuple[int, ...] = (),
) -> None:
    """Computes the attention of a round's rows into `out` [rows, heads, value dim], zeros for padding.

    query [rows, heads, dim], elements of a head adjacent; keys [slots, kv_heads, dim] and values [slots, kv_heads,
    value dim], or rows of 8 bits, slots of any stride. Sinks [heads] take probability but have no value. tiles: sizes
    to choose from, of `tiles_of`; by default the last alone, which needs no trial.
    """
    heads, dim = query.shape[1:]
    kv_heads, value_dim = values.shape[1], elements(values)
    group = heads // kv_heads
    tops = torch.empty(2, work.partials, heads, dtype=torch.float32, device=query.device)
    sums = torch.empty(work.partials, heads, value_dim, dtype=torch.float32, device=query.device)
    block_value = block_of(value_dim)
    tiles = tiles or tiles_of(group)[-1:]
    queries = next((each for each in tiles if each >= len(query) * group), tiles[-1])
    programs = max(1, min(work.most_items, -(-4 * processors(query.device) // kv_heads)))
    attention_parts_kernel[programs, kv_heads](
        query,
        keys,
        values,
        scales_of(keys),
        scales_of(values),
        tops[0],
        tops[1],
        sums,
        work.ranges,
        work.items,
        work.segments,
        work.asked,
        work.seen,
        work.tables,
        query.stride(0),
        query.stride(1),
        keys.stride(0),
        values.stride(0),
        heads,
        float(scaling),
        float(softcap or 0.0),
        int(window or 0),
        GROUP=group,
        DIM=dim,
        VALUE_DIM=value_dim,
        BLOCK_DIM=block_of(dim),
        BLOCK_VALUE=block_value,
        QUERIES=queries,
        CAPPED=softcap is not None,
        WINDOWED=window is not None,
        ITEM_SIZE=ITEM,
        SEGMENT_SIZE=SEGMENT,
        IN_TABLES=RESIDENT,
        ASKED_SIZE=ASKED,
        KEYS=TILE_KEYS,
        **options_of(max(block_of(dim), block_value)),
    )
    together = attention_sum.heads_together(heads, block_value)
    attention_sum_kernel[work.places, -(-heads // together)](
        tops[0],
        tops[1],
        sums,
        sums if sinks is None else sinks,
        work.asked,
        out,
        work.first_place,
        heads,
        int(window or 0),
        VALUE_DIM=value_dim,
        BLOCK_VALUE=block_value,
        HEADS=together,
        SUNK=sinks is not None,
        WINDOWED=window is not None,
        ASKED_SIZE=ASKED,
        SHORT=SHORT,
        LONG=LONG,
        LONG_FROM=LONG_FROM,
        PARTS=BLOCK_PARTS,
        **attention_sum.OPTIONS,
    )


def tiles_of(group: int) -> tuple[int, ...]:
    """Queries of a tile, ascending: of any pass the last, of one of few rows the first that holds all its queries.

    group: query heads per key-value head.
    """
    least = max(_LEAST_BLOCK, triton.next_power_of_2(group))
    most = max(TILE_QUERIES, least)
    return tuple(least << power for power in range((most // least).bit_length()))


def block_of(dim: int) -> int:
    """Elements of a block that holds a head."""
    return int(max(_LEAST_BLOCK, triton.next_power_of_2(dim)))
