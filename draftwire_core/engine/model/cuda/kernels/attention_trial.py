"""The trial of attention: which sizes of tiles of queries give a row the same bits.

Passes of few rows have smaller tiles than others (`tiles_of`), so a row's tile depends on the batch. A tile's size
decides which threads add up a row's weights, and in which order; so it is tried, as products are.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from draftwire_core.engine.device.choices import KvDtype
from draftwire_core.engine.kernels.kv_rows import rounded
from draftwire_core.engine.model.cuda.kernels.attention import attend_slots, tiles_of
from draftwire_core.engine.model.cuda.work.slot_work import PlacedWork

_POSITIONS = 250
"""Positions of the trial: of one part, in several tiles of keys, the last of which is not full."""
_SEED = 20240814


class AttentionKind(NamedTuple):
    """The attention of a layer, as far as it decides which code runs."""

    heads: int
    kv_heads: int
    dim: int
    """Elements of a head."""
    scaling: float
    window: int | None
    softcap: float | None


def equal_tiles(
    kind: AttentionKind, dtype: torch.dtype, device: torch.device, kv_dtype: KvDtype = "auto"
) -> tuple[int, ...]:
    """The sizes of `tiles_of` that give a row the same bits as the largest does, which any pass may have.

    dtype: of queries, and of keys and values unless `kv_dtype` names another type.
    """
    group = kind.heads // kind.kv_heads
    sizes = tiles_of(group)
    if len(sizes) == 1:
        return sizes
    generator = torch.Generator(device).manual_seed(_SEED)

    def draw(count: int, heads: int) -> torch.Tensor:
        return torch.randn(count, heads, kind.dim, generator=generator, dtype=torch.float32, device=device)

    query = draw(sizes[-1] // group, kind.heads).to(dtype)
    keys = draw(_POSITIONS, kind.kv_heads).to(dtype)
    # Of several magnitudes: sums in another order then differ for most elements.
    values = (draw(_POSITIONS, kind.kv_heads) * draw(_POSITIONS, kind.kv_heads).exp()).to(dtype)
    if kv_dtype == "q8_0":
        keys, values = rounded(keys), rounded(values)

    def attended(count: int, size: int) -> torch.Tensor:
        """The attention of the first `count` rows in tiles of one size."""
        # In float32: rounded further, different sums may be equal.
        out = torch.empty(count, kind.heads, kind.dim, dtype=torch.float32, device=device)
        work = _work(count, len(query), device)
        attend_slots(work, query[:count], keys, values, out, kind.scaling, kind.window, kind.softcap, tiles=(size,))
        return out

    expected = attended(len(query), sizes[-1])
    found = {size: attended(size // group, size) for size in sizes[:-1]}
    return (*(size for size, out in found.items() if torch.equal(out, expected[: len(out)])), sizes[-1])


def _work(count: int, most: int, device: torch.device) -> PlacedWork:
    """The work of `count` rows at adjacent positions of one sequence, of which `most` rows would be the last."""

    def numbers(*rows: tuple[int, ...]) -> torch.Tensor:
        return torch.tensor(rows, dtype=torch.int32, device=device)

    first = _POSITIONS - most
    seen = torch.arange(_POSITIONS, dtype=torch.int32, device=device)
    return PlacedWork(
        ranges=numbers((0, 1)),
        items=numbers((0, count, 0, 1, 0, first)),
        segments=numbers((0, 0, first + count, -1)),
        asked=numbers(*((row, 0, first + row, row) for row in range(count))),
        seen=seen,
        tables=seen,
        first_place=0,
        places=count,
        most_items=1,
        partials=count,
    )
