"""Layers that give a row the same bits whatever rows are beside it (law 1), on CPUs.

Libraries choose kernels by shape: a product of one row sums in another order than one of two, and the last elements
of a tensor, those that fill no vector register, go through scalar code whose exponential differs in the last bit.
The replacements here keep each row on one path. They are also faster: weights are packed for oneDNN once, where
`torch.nn.functional.linear` repacks bfloat16 weights at every call.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

_ONE_ROW_EXACT = 1024
"""Up to this many inputs oneDNN's one-row product has the bits of the many-row one; beyond, a second row is added."""
_UNPACKED_ROWS = 8
"""Rows from which on unpacked products have the same bits for any number of rows."""
_SERIAL_ELEMENTS = 32768
"""torch splits longer element-wise work among threads, at places that depend on the whole tensor's size."""
_VECTOR_ELEMENTS = 64
"""A multiple of every vectorised loop's step, so that no element is left over for scalar code."""


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN's packed linear layer exists here for weights of `dtype`."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


class RowExactLinear(nn.Module):
    """A linear layer over a weight [outputs, inputs] packed once, or padded to enough rows where it cannot be."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.packed = can_pack(weight.dtype)
        stored = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self.packed else weight
        self.register_buffer("stored", stored, persistent=False)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., in_features] -> [..., out_features]"""
        rows = inputs.numel() // self.in_features
        wanted = _UNPACKED_ROWS if not self.packed else 2 if self.in_features > _ONE_ROW_EXACT else 1
        if rows == 0:
            return inputs.new_empty(*inputs.shape[:-1], self.out_features)
        if rows >= wanted:
            return self._multiply(inputs)
        flat = inputs.reshape(rows, self.in_features)
        padded = torch.cat([flat, flat[:1].expand(wanted - rows, -1)])
        return self._multiply(padded)[:rows].view(*inputs.shape[:-1], self.out_features)

    def _multiply(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.packed:
            return torch.ops.mkldnn._linear_pointwise(inputs, self.stored, self.bias, "none", [], "")
        return nn.functional.linear(inputs, self.stored, self.bias)


class RowExactActivation(nn.Module):
    """An element-wise function applied in whole vectors, in pieces too short to be split among threads."""

    def __init__(self, function: nn.Module):
        super().__init__()
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., width] -> the same shape"""
        width = inputs.shape[-1]
        flat = inputs.reshape(-1, width)
        spare = -width % _VECTOR_ELEMENTS
        if spare:
            flat = nn.functional.pad(flat, (0, spare))
        rows = max(1, _SERIAL_ELEMENTS // flat.shape[1])
        if flat.shape[0] <= rows:
            out = self.function(flat)
        else:
            out = torch.cat([self.function(piece) for piece in flat.split(rows)])
        return out[:, :width].reshape(inputs.shape) if spare else out.view(inputs.shape)


_ACTIVATIONS = tuple(
    {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values() if entry is not None}
)


def make_row_exact(model: nn.Module) -> None:
    """Replace the linear layers and activation functions of `model` by row-exact ones, in place."""
    for parent in list(model.modules()):
        if isinstance(parent, RowExactActivation):
            continue
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                replacement: nn.Module = RowExactLinear(child.weight.data, _data(child.bias))
            elif isinstance(child, Conv1D):
                replacement = RowExactLinear(child.weight.data.t().contiguous(), _data(child.bias))
            elif isinstance(child, _ACTIVATIONS):
                replacement = RowExactActivation(child)
            else:
                continue
            setattr(parent, name, replacement)


def _data(bias: torch.Tensor | None) -> torch.Tensor | None:
    return None if bias is None else bias.data
