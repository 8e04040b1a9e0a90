"""Rows times a packed weight of bfloat16 or float16 numbers in compiled code, for few rows (`csrc/products/gemm.c`).

The kernel reads the weight at memory bandwidth, has less call overhead than oneDNN, and gives a row the same bits
whatever the number of rows.
"""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages, in_huge_pages
from draftwire_core.engine.kernels.library import BF16_PRODUCTS, gemm_kind, library
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct

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


def can_multiply_int8(weight: torch.Tensor) -> bool:
    """Whether `CompiledGemmInt8` supports a weight [outputs, inputs] on this machine."""
    return weight.shape[1] % INPUT_BLOCK == 0 and gemm_kind() in BF16_PRODUCTS


class CompiledGemmInt8(CompiledProduct):
    """The product of rows and an int8 weight, with a scale per output, that is packed once."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor):
        """weight: int8 [outputs, inputs], supported by `can_multiply_int8`; scales: bfloat16 [outputs]"""
        outputs, inputs = weight.shape
        groups = -(-outputs // OUTPUT_GROUP)
        missing = groups * OUTPUT_GROUP - outputs
        whole = nn.functional.pad(weight, (0, 0, 0, missing))
        tiles = whole.view(groups, 2, TILE, inputs // INPUT_BLOCK, TILE, 2).permute(0, 3, 1, 4, 5, 2)
        every = nn.functional.pad(scales.float(), (0, missing))
        super().__init__("int8", in_huge_pages(tiles), outputs, inputs, every)
