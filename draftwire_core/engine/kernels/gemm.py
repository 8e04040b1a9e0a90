"""Rows times a packed weight of bfloat16 or float16 numbers in compiled code, for few rows (`csrc/products/gemm.c`).

The kernel reads the weight at memory bandwidth, has less call overhead than oneDNN, and gives a row the same bits
whatever the number of rows.
"""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.kernels.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages
from draftwire_core.engine.kernels.library import library

TILE = 16
"""Outputs per tile of a packed weight, and pairs of inputs per tile (`csrc/products/tiles.h`)."""
INPUT_BLOCK = 2 * TILE
"""Inputs per block of a packed weight; the number of inputs must be a multiple."""
OUTPUT_GROUP = 2 * TILE
"""Outputs per group of a packed weight; the last group is padded with zeros."""

_LAYOUTS = {
    torch.bfloat16: ("bf16", (TILE, 2), (0, 3, 1, 4, 2, 5)),
    torch.float16: ("f16", (2, TILE), (0, 3, 1, 4, 5, 2)),
}
"""The library's name of a type, the shape of a pair of inputs in a packed weight, and the order of `_tiles`' dimensions
in one."""


def can_multiply(weight: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> bool:
    """Whether weight [outputs, inputs] has this type and `CompiledGemm` supports it on this machine."""
    return (
        weight.dtype == dtype
        and weight.device.type == "cpu"
        and weight.shape[1] % INPUT_BLOCK == 0
        and library() is not None
    )


class CompiledGemm(CompiledProduct):
    """The product of bfloat16 rows and a weight of bfloat16 or float16 numbers that is packed once."""

    def __init__(self, weight: torch.Tensor):
        """weight: bfloat16 or float16 [outputs, inputs], supported by `can_multiply`"""
        outputs, inputs = weight.shape
        whole, left = divmod(outputs, OUTPUT_GROUP)
        name, pair, order = _LAYOUTS[weight.dtype]
        tiles = empty_in_huge_pages((whole + (left > 0), inputs // INPUT_BLOCK, 2, TILE, *pair), weight.dtype)
        tiles[:whole] = _tiles(weight[: whole * OUTPUT_GROUP], whole).permute(order)
        if left:
            padded = nn.functional.pad(weight[-left:], (0, 0, 0, OUTPUT_GROUP - left))
            tiles[whole:] = _tiles(padded, 1).permute(order)
        super().__init__(name, tiles, outputs, inputs)


def _tiles(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """A view of a weight of whole groups: [groups, tiles, outputs, blocks, pairs, inputs of a pair]"""
    return weight.unflatten(0, (groups, 2, TILE)).unflatten(3, (-1, TILE, 2))
