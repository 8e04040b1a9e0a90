"""Linear layers for drafters, whose bits decide no token: weights packed once, or in int8; heads of some rows.

They need not pay the cost of `row_exact`, up to half of a small layer's time. A step of few rows takes as long as
reading the weights, and int8 weights need half the memory traffic of bfloat16. Rounding may cost acceptance.
"""

from __future__ import annotations

import torch
from torch import nn

from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm import CompiledGemmInt8, can_multiply_int8
from draftwire_core.engine.model.file_pages import let_go_of
from draftwire_core.engine.model.linear.block_linear import maker
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, weight_of
from draftwire_core.engine.model.linear.row_exact import product_for


class PackedLinear(nn.Module):
    """A linear layer whose weight is packed where possible."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.product = product_for(weight)(weight)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., in_features] -> [..., out_features]"""
        out = self.product(inputs.reshape(-1, self.in_features), self.bias)
        return out.view(*inputs.shape[:-1], self.out_features)


def replace_linears(model: nn.Module, make_linear: MakeLinear) -> None:
    """Replaces the linear layers of `model` by those that `make_linear` makes, in place."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight = weight_of(child)
            if weight is not None:
                setattr(parent, name, make_linear(weight, None if child.bias is None else child.bias.data))
                let_go_of(child)


def pack_linears(model: nn.Module) -> None:
    """Packs the linear layers of `model` in place, on a CPU; a GPU's are left to its own products."""
    if all(each.device.type == "cpu" for each in model.parameters()):
        replace_linears(model, PackedLinear)


_LARGEST = 127
"""Largest integer of a weight; -128 is not used, so that rounding is symmetric."""
_FEW_ROWS = 8
"""Largest number of rows for which torch's int8 product is faster than widening the whole weight first."""
_LIBRARY_BLOCK = 16
"""Inputs per block of torch's int8 product, which reads past the end of a weight whose inputs are not a multiple."""


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantises a weight [outputs, inputs], with a scale per output.

    Returns int8 [outputs, inputs] from -127 to 127, and scales, bfloat16 [outputs].
    """
    whole = weight.float()
    scales = (whole.abs().amax(1) / _LARGEST).to(torch.bfloat16)
    units = scales.float().clamp(min=torch.finfo(torch.bfloat16).tiny)
    integers = (whole / units[:, None]).round_().clamp_(-_LARGEST, _LARGEST)
    return integers.to(torch.int8), scales


class LibraryInt8Product(nn.Module):
    """The product of rows and an int8 weight by torch's own products."""

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
    """A linear layer that quantises its weight to int8."""

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


_UNITS = 64
"""Unit vectors that go through a head at once, which bounds the memory of their logits."""


def rows_of_head(head: nn.Module, token_ids: torch.Tensor, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows of tokens, int64 [tokens], in a head: float32 [tokens, hidden], and its bias, float32 [tokens].

    The head's products with unit vectors are its columns, whatever form its weights have. like: with the head's dtype
    and device, [hidden, ...].
    """
    units = torch.eye(len(like), dtype=like.dtype, device=like.device)
    with torch.no_grad():
        bias = head(torch.zeros_like(units[:1]))[0, token_ids].float()
        columns = [head(part)[:, token_ids].float() for part in units.split(_UNITS)]
    return (torch.cat(columns) - bias).T.contiguous(), bias


def head_of_rows(rows: torch.Tensor, bias: torch.Tensor, dtype: torch.dtype) -> nn.Module:
    """Returns an output head of rows, float32 [tokens, hidden], and bias, float32 [tokens], for a model on a CPU with
    this dtype. Weights for bfloat16 have 8 bits; in compiled code the logits are float32."""
    make = maker(PackedLinear, "q8_0" if dtype == torch.bfloat16 else None)
    made = make(rows.to(dtype), bias.to(dtype) if bool(bias.any()) else None)
    for product in made.modules():
        if isinstance(product, CompiledProduct):
            product.wide = True
    return made
