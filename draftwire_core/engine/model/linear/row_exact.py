"""Row-exact layers for CPUs: they give a row the same bits whatever rows share its batch (law 1).

Libraries choose kernels by shape. A product of few rows may sum in another order than one of many, and the last
elements of a tensor, which do not fill a vector register, go through scalar code whose exponential differs in the last
bit. The layers here keep every row on one path. They are also faster: weights are packed for oneDNN once, whereas
`torch.nn.functional.linear` repacks bfloat16 weights at every call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from transformers.activations import ACT2CLS

from draftwire_core.engine.kernels.products.gemm import CompiledGemm, can_multiply
from draftwire_core.engine.model.file_pages import let_go_of
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, weight_of
from draftwire_core.engine.model.linear.row_range import MOST_ROWS, RowRange, row_range

_SERIAL_ELEMENTS = 32768
"""torch splits longer element-wise operations among threads, at points that depend on the whole tensor's size."""
_VECTOR_ELEMENTS = 64
"""A multiple of every vectorised loop's step, so that no element is left to scalar code."""


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN has a packed linear layer for weights of `dtype` on this machine."""
    if not torch.backends.mkldnn.is_available():
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(dtype == torch.float32)


class PackedProduct(nn.Module):
    """The product of rows and a weight that is packed for oneDNN once."""

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.register_buffer("stored", torch.ops.mkldnn._reorder_linear_weight(weight, None), persistent=False)

    def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows [rows, inputs] -> [rows, outputs]"""
        return torch.ops.mkldnn._linear_pointwise(rows, self.stored, bias, "none", [], "")


class TurnedProduct(nn.Module):
    """The product computed as the weight times the transposed rows, with the result transposed back.

    The number of rows is then the library's number of outputs, which does not affect its order of sums.
    """

    def __init__(self, weight: torch.Tensor):
        super().__init__()
        self.register_buffer("stored", weight, persistent=False)

    def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows [rows, inputs] -> [rows, outputs]"""
        # A single row would become a matrix-vector product, which takes a fifth longer than two rows.
        wide = rows if len(rows) > 1 else torch.cat([rows, rows])
        out = nn.functional.linear(self.stored, wide).t()[: len(rows)].contiguous()
        return out if bias is None else out.add_(bias)


class PlainProduct(TurnedProduct):
    """The product by torch's own linear layer."""

    def forward(self, rows: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """rows [rows, inputs] -> [rows, outputs]"""
        return nn.functional.linear(rows, self.stored, bias)


def product_for(weight: torch.Tensor) -> type[nn.Module]:
    """The fastest available class of product for few rows and a weight [outputs, inputs]."""
    if can_multiply(weight):
        return CompiledGemm
    return PackedProduct if can_pack(weight.dtype) else PlainProduct


class RowExactLinear(nn.Module):
    """A linear layer that gives each row the same bits: it pads or splits batches outside its exact range of rows.

    Where the usual product has a short range on this processor, `TurnedProduct` replaces it if its range is longer.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        kind = product_for(weight)
        shape = self.out_features, self.in_features
        self.rows = row_range(kind, *shape, weight.dtype, separate=kind is CompiledGemm)
        if self.rows.most < MOST_ROWS:
            turned = row_range(TurnedProduct, *shape, weight.dtype)
            if turned.most > self.rows.most:
                kind, self.rows = TurnedProduct, turned
        self.product = kind(weight)
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., in_features] -> [..., out_features]"""
        with torch._C.DisableTorchFunction():  # RowExactFunctions, which would look at each call
            return _within(self.rows, self.product, self.out_features, inputs, self.bias)


def row_exact_linear(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`torch.nn.functional.linear` with the same bits for a row in any batch: inputs [..., inputs], weight [outputs,
    inputs], bias [outputs] -> [..., outputs]"""
    outputs, width = weight.shape
    rows = row_range(PlainProduct, outputs, width, weight.dtype)
    return _within(rows, PlainProduct(weight), outputs, inputs, bias)


def _within(
    rows: RowRange, product: nn.Module, outputs: int, inputs: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """Multiplies inputs [..., inputs] padded or split to numbers of rows in the product's exact range."""
    flat = inputs.reshape(-1, inputs.shape[-1])
    if rows.least <= len(flat) <= rows.most:
        out = product(flat, bias)
    elif len(flat):
        out = torch.cat([_padded(part, rows.least, product, bias) for part in flat.split(rows.most)])
    else:
        out = flat.new_empty(0, outputs)
    return out.view(*inputs.shape[:-1], outputs)


def _padded(rows: torch.Tensor, least: int, product: nn.Module, bias: torch.Tensor | None) -> torch.Tensor:
    missing = least - len(rows)
    given = torch.cat([rows, rows[:1].expand(missing, -1)]) if missing > 0 else rows
    out: torch.Tensor = product(given, bias)
    return out[: len(rows)]


def in_whole_vectors(function: Callable[[torch.Tensor], torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
    """Applies an element-wise function in whole vectors, and in pieces too short to be split among threads."""
    count = inputs.numel()
    missing = -count % _VECTOR_ELEMENTS
    is_long = count > _SERIAL_ELEMENTS and torch.get_num_threads() > 1
    if not missing and not is_long and inputs.is_contiguous():
        return function(inputs)
    flat = inputs.reshape(-1)
    if missing:
        flat = nn.functional.pad(flat, (0, missing))
    out = torch.cat([function(piece) for piece in flat.split(_SERIAL_ELEMENTS)]) if is_long else function(flat)
    return out[:count].view(inputs.shape)


class RowExactActivation(nn.Module):
    """An element-wise function, applied `in_whole_vectors`."""

    def __init__(self, function: nn.Module):
        super().__init__()
        self.function = function

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., width] -> the same shape"""
        with torch._C.DisableTorchFunction():
            return in_whole_vectors(self.function, inputs)


_ACTIVATIONS = tuple(
    {entry[0] if isinstance(entry, tuple) else entry for entry in ACT2CLS.values() if entry is not None}
)


def make_row_exact(model: nn.Module, make_linear: MakeLinear) -> None:
    """Replaces the linear layers of `model` by those that `make_linear` makes, and its activation functions by
    row-exact ones, in place."""
    for parent in list(model.modules()):
        if isinstance(parent, RowExactActivation):
            continue
        for name, child in list(parent.named_children()):
            weight = weight_of(child)
            if weight is not None:
                replacement: nn.Module = make_linear(weight, None if child.bias is None else child.bias.data)
                let_go_of(child)
            elif isinstance(child, _ACTIVATIONS):
                replacement = RowExactActivation(child)
            else:
                continue
            setattr(parent, name, replacement)
