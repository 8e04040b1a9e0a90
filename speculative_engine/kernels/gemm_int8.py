"""Rows times a packed weight of 8-bit integers in compiled code, for few rows in bfloat16. See gemm_int8.c.

It reads half of the bytes that a bfloat16 weight has, at the memory's speed, and gives a row the same bits whatever the
number of rows.
"""

from __future__ import annotations

import ctypes

import torch
from torch import nn

from speculative_engine.kernels.huge_pages import in_huge_pages
from speculative_engine.kernels.library import gemm_kind, loaded

_BLOCK = 32
_TILE = 16


class _Product(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "weight", "scales", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("row_count", "outputs", "inputs")),
    )


def can_multiply_int8(weight: torch.Tensor) -> bool:
    """Whether the compiled product can be had for a weight [outputs, inputs]."""
    return weight.shape[1] % _BLOCK == 0 and gemm_kind() > 0


class CompiledGemmInt8(nn.Module):
    """Rows times a weight that is packed once."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor):
        """weight: int8 [outputs, inputs], for which `can_multiply_int8`; scales: bfloat16 [outputs]"""
        super().__init__()
        self.outputs, self.inputs = weight.shape
        groups = -(-self.outputs // _BLOCK)
        missing = groups * _BLOCK - self.outputs
        whole = nn.functional.pad(weight, (0, 0, 0, missing))
        tiles = whole.view(groups, 2, _TILE, self.inputs // _BLOCK, _TILE, 2).permute(0, 3, 1, 4, 5, 2)
        self.register_buffer("stored", in_huge_pages(tiles), persistent=False)
        self.register_buffer("scales", nn.functional.pad(scales.float(), (0, missing)), persistent=False)

    def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows: bfloat16 [rows, inputs], bias: bfloat16 [outputs] -> bfloat16 [rows, outputs]"""
        rows = rows.contiguous()
        out = rows.new_empty(len(rows), self.outputs)
        call = _Product(
            rows.data_ptr(), self.stored.data_ptr(), self.scales.data_ptr(), None if bias is None else bias.data_ptr(),
            out.data_ptr(), len(rows), self.outputs, self.inputs,
        )  # fmt: skip
        loaded().draftwire_gemm_int8(ctypes.addressof(call), gemm_kind(), torch.get_num_threads())
        return out
