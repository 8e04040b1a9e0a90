"""Attention of the reproducible mode: every product and every sum has one shape, whatever else is in the pass.

Libraries choose the order of sums by shape, so with one shape a row's sums always run in one order. Rows are multiplied
by keys and values in tiles of 8 rows and blocks of 128 positions, 64 such pairs at a time; the blocks of a row are
added up by elements, in an order that depends on their number alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from speculative_engine.model.cuda.fixed_batch import CHUNK, TILE_ROWS, FixedBatch
from speculative_engine.model.packed_batch import KEY_BLOCK

_LEAST_EXPONENT = -80.0
"""As in packed_attention.py."""


def attend_fixed(
    batch: FixedBatch,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Computes each row's attention to what it sees; float32 [rows, heads, value dim], zeros for padding rows.

    query [heads, rows, key dim] float32, scaled; keys and values of all slots, [kv_heads, slots, dim] each. Sinks
    [heads] take probability but have no value.
    """
    tiles = batch.tiles
    kv_heads, heads = len(keys), len(query)
    shared = heads // kv_heads
    # [tiles + 1, kv_heads, shared * TILE_ROWS, dim]
    tiled = (
        query.index_select(1, tiles.rows)
        .view(kv_heads, shared, tiles.count + 1, TILE_ROWS, -1)
        .permute(2, 0, 1, 3, 4)
        .reshape(tiles.count + 1, kv_heads, shared * TILE_ROWS, -1)
    )
    offsets = torch.arange(KEY_BLOCK, device=query.device)
    chunks = list(zip(*(each.split(CHUNK) for each in (tiles.tile, tiles.first, tiles.keys)), strict=True))
    scored: list[Tensor] = []
    for tile, first, slots in chunks:
        scores = torch.bmm(
            tiled.index_select(0, tile).view(CHUNK * kv_heads, shared * TILE_ROWS, -1),
            _gathered(keys, slots).transpose(1, 2),
        )
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        key = (first.unsqueeze(1) + offsets).view(CHUNK, 1, 1, 1, KEY_BLOCK)
        row = tiles.positions.index_select(0, tile).view(CHUNK, 1, 1, TILE_ROWS, 1)
        seen = key <= row
        if window is not None:
            seen = seen & (key > row - window)
        scored.append(scores.view(CHUNK, kv_heads, shared, TILE_ROWS, KEY_BLOCK).masked_fill(~seen, -torch.inf))
    # The largest of some numbers is the same in any order.
    highest = _folded(torch.cat([scores.amax(-1) for scores in scored]), tiles.folds, torch.maximum, -torch.inf)
    highest = torch.cat([highest, highest.new_zeros(1, *highest.shape[1:])])  # of the tile that pads
    if sinks is not None:
        sunk = sinks.float().view(kv_heads, shared, 1)
        highest = torch.maximum(highest, sunk)
    summed: list[Tensor] = []
    totals: list[Tensor] = []
    for (tile, _, slots), scores in zip(chunks, scored, strict=True):
        hidden = scores == -torch.inf
        exponents = scores.sub_(highest.index_select(0, tile).unsqueeze(-1)).clamp_(min=_LEAST_EXPONENT)
        weights = exponents.exp_().masked_fill_(hidden, 0.0)
        totals.append(weights.sum(-1, keepdim=True))
        products = torch.bmm(weights.view(CHUNK * kv_heads, shared * TILE_ROWS, KEY_BLOCK), _gathered(values, slots))
        summed.append(products.view(CHUNK, kv_heads, shared, TILE_ROWS, -1))
    total = _folded(torch.cat(totals), tiles.folds, torch.add, 0.0)
    if sinks is not None:
        total = total + torch.exp(sunk - highest[: tiles.count]).unsqueeze(-1)
    attended = _folded(torch.cat(summed), tiles.folds, torch.add, 0.0) / total
    by_place = attended.permute(0, 3, 1, 2, 4).reshape(tiles.count * TILE_ROWS, heads, -1)
    out = query.new_zeros(len(batch), heads, values.shape[-1])
    return out.index_copy_(0, tiles.place_rows, by_place.index_select(0, tiles.places))


def _gathered(stored: Tensor, slots: Tensor) -> Tensor:
    """Keys or values of blocks, slots [CHUNK, KEY_BLOCK]: float32 [CHUNK * kv_heads, KEY_BLOCK, dim]."""
    found = stored.index_select(1, slots.reshape(-1)).float()
    return found.view(len(stored), CHUNK, KEY_BLOCK, -1).transpose(0, 1).reshape(-1, KEY_BLOCK, stored.shape[-1])


def _folded(
    terms: Tensor, folds: list[tuple[Tensor, Tensor]], join: Callable[[Tensor, Tensor], Tensor], neutral: float
) -> Tensor:
    """Joins the terms [pairs, ...] of each tile two by two: [tiles, ...]. neutral: joined to a term, it changes
    nothing."""
    for left, right in folds:
        terms = torch.cat([terms, terms.new_full((1, *terms.shape[1:]), neutral)])
        terms = join(terms.index_select(0, left), terms.index_select(0, right))
    return terms
