"""Rows times a packed bfloat16 weight in compiled code, for few rows (`csrc/gemm.c`).

The kernel reads the weight at memory bandwidth, has less call overhead than oneDNN, and gives a row the same bits
whatever the number of rows.
"""

from __future__ import annotations

import torch
from torch import nn

from speculative_engine.kernels.compiled_product import CompiledProduct
from speculative_engine.kernels.huge_pages import empty_in_huge_pages
from speculative_engine.kernels.library import library

TILE = 16
"""Outputs per tile of a packed weight, and pairs of inputs per tile (`csrc/tiles.h`)."""
INPUT_BLOCK = 2 * TILE
"""Inputs per block of a packed weight; the number of inputs must be a multiple."""
OUTPUT_GROUP = 2 * TILE
"""Outputs per group of a packed weight; the last group is padded with zeros."""


def can_multiply(weight: torch.Tensor) -> bool:
    """Whether `CompiledGemm` supports a weight [outputs, inputs] on this machine."""
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and weight.shape[1] % INPUT_BLOCK == 0
        and library() is not None
    )


class CompiledGemm(CompiledProduct):
    """The product of rows and a bfloat16 weight that is packed once."""

    def __init__(self, weight: torch.Tensor):
        """weight: bfloat16 [outputs, inputs], supported by `can_multiply`"""
        outputs, inputs = weight.shape
        whole, left = divmod(outputs, OUTPUT_GROUP)
        shape = (whole + (left > 0), inputs // INPUT_BLOCK, 2, TILE, TILE, 2)
        tiles = empty_in_huge_pages(shape, weight.dtype)
        tiles[:whole] = _tiles(weight[: whole * OUTPUT_GROUP], whole)
        if left:
            tiles[whole:] = _tiles(nn.functional.pad(weight[-left:], (0, 0, 0, OUTPUT_GROUP - left)), 1)
        super().__init__("bf16", tiles, outputs, inputs)


def _tiles(weight: torch.Tensor, groups: int) -> torch.Tensor:
    """A view of a weight of whole groups in the order of a packed one."""
    return weight.unflatten(0, (groups, 2, TILE)).unflatten(3, (-1, TILE, 2)).permute(0, 3, 1, 4, 2, 5)
