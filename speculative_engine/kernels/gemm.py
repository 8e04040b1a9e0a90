"""Rows times a packed weight in compiled code, for few rows. See gemm.c.

It reads the weight at the memory's speed, has less to do before and after than the library's call, and gives a row the
same bits whatever the number of rows.
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
        *((name, ctypes.c_void_p) for name in ("rows", "weight", "bias", "out")),
        *((name, ctypes.c_int64) for name in ("row_count", "outputs", "inputs")),
    )


def can_multiply(weight: torch.Tensor) -> bool:
    """Whether the compiled product can be had for a weight [outputs, inputs]: bfloat16 and what for."""
    return (
        weight.dtype == torch.bfloat16
        and weight.device.type == "cpu"
        and weight.shape[1] % _BLOCK == 0
        and gemm_kind() > 0
    )


class CompiledGemm(nn.Module):
    """Rows times a weight that is packed once."""

    def __init__(self, weight: torch.Tensor):
        """weight: bfloat16 [outputs, inputs], for which `can_multiply`"""
        super().__init__()
        self.outputs, self.inputs = weight.shape
        groups = -(-self.outputs // _BLOCK)
        whole = nn.functional.pad(weight, (0, 0, 0, groups * _BLOCK - self.outputs))
        tiles = whole.view(groups, 2, _TILE, self.inputs // _BLOCK, _TILE, 2).permute(0, 3, 1, 4, 2, 5)
        self.register_buffer("stored", in_huge_pages(tiles), persistent=False)

    def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows [rows, inputs] -> [rows, outputs]"""
        rows = rows.contiguous()
        out = rows.new_empty(len(rows), self.outputs)
        call = _Product(
            rows.data_ptr(), self.stored.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr(),
            len(rows), self.outputs, self.inputs,
        )  # fmt: skip
        loaded().draftwire_gemm(ctypes.addressof(call), gemm_kind(), torch.get_num_threads())
        return out
