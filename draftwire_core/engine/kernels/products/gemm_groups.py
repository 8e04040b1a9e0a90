"""Rows times a weight of integers in groups in compiled code, for few rows (`csrc/products/gemm_blocks.c`).

Weights are packed once without changing a value. The kernel reads them at memory bandwidth. It gives a row the same
bits whatever the number of rows, on every processor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from draftwire_core.engine.kernels.huge_pages import in_huge_pages
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct

BLOCK = 32
"""Inputs of a row that share a unit; a group of a weight consists of whole blocks."""
_GROUP = 16
"""Outputs per group of a packed weight; the last group is padded with zeros."""
_STEP = 4
"""Inputs of an output that follow each other in a packed weight."""
_ROWS_AT_ONCE = 1024

ReadIntegers = Callable[[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]
"""Reads outputs `first` to `last` - 1 of a weight: integers, uint8 [outputs, inputs]; scales, float32 [outputs, groups
of inputs]; zero points, uint8 [outputs, groups of inputs]. Values are scale * (integer - zero point)."""


def packed(read: ReadIntegers, bits: int, outputs: int) -> torch.Tensor:
    """Packs a weight as `csrc/products/gemm_blocks.c` describes: uint8 [groups of outputs, bytes]."""
    found = []
    for first in range(0, outputs, _ROWS_AT_ONCE):
        integers, scales, zeros = read(first, min(first + _ROWS_AT_ONCE, outputs))
        quants = integers.unflatten(1, (-1, BLOCK))
        quants = quants ^ 128 if bits == 8 else quants[..., : BLOCK // 2] | quants[..., BLOCK // 2 :] << 4
        parts = [quants.unflatten(2, (-1, _STEP)).flatten(1, 2), scales[..., None], zeros[..., None]]
        missing = -len(integers) % _GROUP
        padded = [nn.functional.pad(part, (0, 0, 0, 0, 0, missing)) for part in parts]
        grouped = [part.unflatten(0, (-1, _GROUP)).transpose(1, 2).contiguous() for part in padded]
        found.append(torch.cat([part.flatten(1).view(torch.uint8) for part in grouped], 1))
    return torch.cat(found)


class CompiledGroupGemm(CompiledProduct):
    """The product of rows and a weight of integers in groups that is packed once."""

    def __init__(self, read: ReadIntegers, bits: int, outputs: int, inputs: int, group: int):
        """bits: 4 or 8. group: inputs per scale, a multiple of 32 that divides `inputs`"""
        super().__init__(f"group{bits}", in_huge_pages(packed(read, bits, outputs)), outputs, inputs, group=group)
