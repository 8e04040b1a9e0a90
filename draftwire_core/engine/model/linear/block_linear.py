"""Linear layers with weights as checkpoints have them, quantised or in float16, for targets and drafters.

A row is rounded to 8 bits per block before it is multiplied by integers. Its result depends neither on the other rows
of its batch nor, in compiled code, on the processor.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm_blocks import FORMATS, BlockType
from draftwire_core.engine.model.linear.block_weight import BlockWeight, in_blocks
from draftwire_core.engine.model.linear.half_weight import HalfWeight
from draftwire_core.engine.model.linear.linear_weight import MakeLinear, Weight


class BlockLinear(nn.Module):
    """A linear layer with a quantised weight, in compiled code."""

    def __init__(self, product: CompiledProduct, bias: torch.Tensor | None):
        """product: with a quantised weight; bias: bfloat16 [outputs]"""
        super().__init__()
        self.product = product
        self.out_features, self.in_features = product.outputs, product.inputs
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: bfloat16 [..., in_features] -> bfloat16 [..., out_features]"""
        with torch._C.DisableTorchFunction():  # RowExactFunctions, which would look at each call
            out = self.product(inputs.reshape(-1, self.in_features), self.bias)
            return out.view(*inputs.shape[:-1], self.out_features)


class ReorderedLinear(nn.Module):
    """A linear layer that takes its inputs in another order."""

    def __init__(self, linear: nn.Module, order: torch.Tensor):
        """order: int64 [in_features], the input at each place of `linear`'s inputs"""
        super().__init__()
        self.linear = linear
        self.out_features, self.in_features = linear.out_features, linear.in_features
        self.register_buffer("order", order, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., in_features] -> [..., out_features]"""
        out: torch.Tensor = self.linear(inputs.index_select(-1, self.order))
        return out


def maker(
    make_from_tensor: Callable[[torch.Tensor, torch.Tensor | None], nn.Module],
    kind: BlockType | None,
    *,
    keep_halves: bool = True,
) -> MakeLinear:
    """Returns a function that makes linear layers from weights of any type.

    Quantised weights stay as they are. Tensors, in bfloat16, are quantised to `kind`, except those with another number
    of inputs than it allows; these, and all if `kind` is None, go to `make_from_tensor`. Without compiled code a layer
    has the values of its quantised weight in bfloat16, and rows are not rounded. keep_halves: whether float16 weights
    stay as they are, too, instead of being rounded to tensors in bfloat16.
    """

    def make(weight: Weight, bias: torch.Tensor | None) -> nn.Module:
        stop_if_abandoned()
        if isinstance(weight, HalfWeight) and not keep_halves:
            weight = weight.values()
        if isinstance(weight, torch.Tensor):
            if kind is None or weight.shape[1] % FORMATS[kind].inputs:
                return make_from_tensor(weight, bias)
            weight = BlockWeight(kind, in_blocks(weight, kind))
        product = weight.product()
        if product is None:
            return make_from_tensor(weight.values(), bias)
        linear = BlockLinear(product, bias)
        return linear if weight.order is None else ReorderedLinear(linear, weight.order)

    return make


class StoredEmbedding(nn.Module):
    """An embedding whose rows are converted when they are looked up."""

    def __init__(self, weight: BlockWeight | HalfWeight, scale: float | None = None):
        """scale: what the rows are multiplied by, rounded to bfloat16, as in Gemma's models"""
        super().__init__()
        self.scale = None if scale is None else torch.tensor(scale).bfloat16().item()
        self.stored = weight
        self.num_embeddings, self.embedding_dim = weight.outputs, weight.inputs
        self.register_buffer("weight", weight.raw)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [...] -> bfloat16 [..., embedding_dim]"""
        rows = self.stored.rows(token_ids.flatten()).view(*token_ids.shape, self.embedding_dim)
        return rows if self.scale is None else rows * self.scale
