"""Rows times a weight of 8-bit floats (e4m3) in compiled code, for few rows (`csrc/products/gemm_fp8.c`).

Weights are packed once without changing a value. The kernel gives a row the same bits whatever the number of rows, on
every processor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from draftwire_core.engine.kernels.huge_pages import in_huge_pages
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct

_GROUP = 16
"""Outputs per group of a packed weight; the last group is padded with zeros."""
_ROWS_AT_ONCE = 1024
_FACTOR = 256.0
"""Packed scales are multiplied by this, since the kernel divides elements by it."""

ReadFloats = Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]
"""Reads outputs `first` to `last` - 1 of a weight: float8_e4m3fn [outputs, inputs], and scales, float32 [outputs,
groups of inputs]."""


def packed(read: ReadFloats, outputs: int) -> torch.Tensor:
    """Packs a weight as `csrc/products/gemm_fp8.c` describes: uint8 [groups, bytes]."""
    found = []
    for first in range(0, outputs, _ROWS_AT_ONCE):
        values, scales = read(first, min(first + _ROWS_AT_ONCE, outputs))
        missing = -len(values) % _GROUP
        codes = nn.functional.pad(values.view(torch.uint8), (0, 0, 0, missing))
        units = nn.functional.pad(scales * _FACTOR, (0, 0, 0, missing))
        pairs = codes.unflatten(0, (-1, _GROUP)).unflatten(2, (-1, 2)).transpose(1, 2)
        by_group = units.unflatten(0, (-1, _GROUP)).transpose(1, 2).contiguous()
        found.append(torch.cat([pairs.flatten(1), by_group.flatten(1).view(torch.uint8)], 1))
    return torch.cat(found)


class CompiledFp8Gemm(CompiledProduct):
    """The product of rows and a weight of 8-bit floats that is packed once."""

    def __init__(self, read: ReadFloats, outputs: int, inputs: int, group: int):
        """group: inputs per scale, a multiple of 32; the last group may be shorter. inputs: a multiple of 32"""
        super().__init__("fp8", in_huge_pages(packed(read, outputs)), outputs, inputs, group=group)
