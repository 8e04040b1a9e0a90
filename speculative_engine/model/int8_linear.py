"""Linear layers of drafters with weights of 8-bit integers, which take half of the memory traffic of bfloat16 ones.

A step of few rows takes as long as reading the weights does. Rows and results stay bfloat16. What the rounding of the
weights changes costs acceptance, never an output: a drafter's bits decide no token.
"""

from __future__ import annotations

import torch
from torch import nn

from speculative_engine.kernels.gemm_int8 import CompiledGemmInt8, can_multiply_int8

_LARGEST = 127
"""-128 is left out, so that weights are rounded alike on both sides of zero."""
_FEW_ROWS = 8
"""Up to which the library's own product of integers is faster than widening the whole weight first."""
_LIBRARY_BLOCK = 16
"""Inputs that the library's product takes at a time; it reads beyond the end of a weight that has no multiple of it."""


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest integers to a weight [outputs, inputs] in units of each output's scale.

    Returns int8 [outputs, inputs] from -127 to 127, and scales, bfloat16 [outputs].
    """
    whole = weight.float()
    scales = (whole.abs().amax(1) / _LARGEST).to(torch.bfloat16)
    units = scales.float().clamp(min=torch.finfo(torch.bfloat16).tiny)
    integers = (whole / units[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
    return integers.to(torch.int8), scales


class LibraryInt8Product(nn.Module):
    """Rows times a weight of integers by the library's own products."""

    def __init__(self, weight: torch.Tensor, scales: torch.Tensor):
        """weight: int8 [outputs, inputs], scales: bfloat16 [outputs]"""
        super().__init__()
        self.register_buffer("stored", weight, persistent=False)
        self.register_buffer("scales", scales, persistent=False)
        self._most = _FEW_ROWS if weight.shape[1] % _LIBRARY_BLOCK == 0 else 0

    def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows: bfloat16 [rows, inputs], bias: bfloat16 [outputs] -> bfloat16 [rows, outputs]"""
        if len(rows) <= self._most:
            out = torch._weight_int8pack_mm(rows.contiguous(), self.stored, self.scales)
        else:
            out = nn.functional.linear(rows, self.stored.to(rows.dtype)).mul_(self.scales)
        return out if bias is None else out.add_(bias)


class Int8Linear(nn.Module):
    """A linear layer over a weight that is rounded to integers when it is made."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        """weight: bfloat16 [outputs, inputs], bias: bfloat16 [outputs]; on a CPU"""
        super().__init__()
        self.out_features, self.in_features = weight.shape
        integers, scales = quantised(weight)
        kind = CompiledGemmInt8 if can_multiply_int8(integers) else LibraryInt8Product
        self.product = kind(integers, scales)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: bfloat16 [..., in_features] -> bfloat16 [..., out_features]"""
        out = self.product(inputs.reshape(-1, self.in_features), self.bias)
        return out.view(*inputs.shape[:-1], self.out_features)
