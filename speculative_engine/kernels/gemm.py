"""Rows times a packed bfloat16 weight in compiled code, for few rows (`csrc/gemm.c`).

The kernel reads the weight at memory bandwidth, has less call overhead than oneDNN, and gives a row the same bits
whatever the number of rows.
"""

from __future__ import annotations

import ctypes

import torch
from torch import nn

from speculative_engine.kernels.huge_pages import in_huge_pages
from speculative_engine.kernels.library import BF16_PRODUCTS, gemm_kind, loaded
from speculative_engine.kernels.structs import Gemm

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
        and gemm_kind() > 0
    )


class CompiledGemm(nn.Module):
    """The product of rows and a bfloat16 weight that is packed once."""

    def __init__(self, weight: torch.Tensor):
        """weight: bfloat16 [outputs, inputs], supported by `can_multiply`"""
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
        kind = gemm_kind()
        widened = torch.empty(rows.shape, dtype=torch.float32) if kind < BF16_PRODUCTS else None
        call = Gemm(
            rows.data_ptr(), self.stored.data_ptr(), None, None if bias is None else bias.data_ptr(), out.data_ptr(),
            None if widened is None else widened.data_ptr(), len(rows), self.outputs, self.inputs,
        )  # fmt: skip
        loaded().draftwire_gemm(ctypes.addressof(call), kind, torch.get_num_threads())
        return out
