"""Rows in bfloat16 times a packed int8 weight in compiled code, for few rows (`csrc/products/gemm_int8.c`).

The kernel reads half the bytes of a bfloat16 weight, at memory bandwidth, and gives a row the same bits whatever the
number of rows.
"""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.kernels.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.gemm import INPUT_BLOCK, OUTPUT_GROUP, TILE
from draftwire_core.engine.kernels.huge_pages import in_huge_pages
from draftwire_core.engine.kernels.library import BF16_PRODUCTS, gemm_kind


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
