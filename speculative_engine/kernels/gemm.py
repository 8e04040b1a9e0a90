"""Rows times a packed bfloat16 weight in compiled code, for few rows (`csrc/gemm.c`).

It reads the weight at the memory's speed, has less overhead than oneDNN's call, and gives a row the same bits whatever
the number of rows.
"""

from __future__ import annotations

import ctypes

import torch
from torch import nn

from speculative_engine.kernels.huge_pages import in_huge_pages
from speculative_engine.kernels.library import gemm_kind, loaded
from speculative_engine.kernels.structs import Gemm

TILE = 16
"""Outputs, and pairs of inputs, of a tile of a packed weight (`csrc/tiles.h`)."""
INPUT_BLOCK = 2 * TILE
"""Inputs of a block of a packed weight; a weight's inputs are a multiple of it."""
OUTPUT_GROUP = 2 * TILE
"""Outputs of a group of a packed weight; the last group is filled up with zeros."""


def can_multiply(weight: torch.Tensor) -> bool:
    """Whether `CompiledGemm` can take a weight [outputs, inputs]."""
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and weight.shape[1] % INPUT_BLOCK == 0
        and gemm_kind() > 0
    )


class CompiledGemm(nn.Module):
    """Rows times a bfloat16 weight, which is packed once."""

    def __init__(self, weight: torch.Tensor):
        """weight: bfloat16 [outputs, inputs], for which `can_multiply`"""
        super().__init__()
        self.outputs, self.inputs = weight.shape
        groups = -(-self.outputs // OUTPUT_GROUP)
        whole = nn.functional.pad(weight, (0, 0, 0, groups * OUTPUT_GROUP - self.outputs))
        tiles = whole.view(groups, 2, TILE, self.inputs // INPUT_BLOCK, TILE, 2).permute(0, 3, 1, 4, 2, 5)
        self.register_buffer("stored", in_huge_pages(tiles), persistent=False)

    def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows: bfloat16 [rows, inputs], bias: bfloat16 [outputs] -> bfloat16 [rows, outputs]"""
        rows = rows.contiguous()
        out = rows.new_empty(len(rows), self.outputs)
        call = Gemm(
            rows.data_ptr(), self.stored.data_ptr(), None, None if bias is None else bias.data_ptr(), out.data_ptr(),
            len(rows), self.outputs, self.inputs,
        )  # fmt: skip
        loaded().draftwire_gemm(ctypes.addressof(call), gemm_kind(), torch.get_num_threads())
        return out
