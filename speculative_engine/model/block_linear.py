"""Linear layers with weights quantised in blocks, for targets and drafters.

A row is rounded to 8 bits per block before it is multiplied. Its result depends neither on the other rows of its batch
nor, in compiled code, on the processor.
"""

from __future__ import annotations

from collections.abc import Callable

import gguf
import numpy as np
import torch
from torch import nn

from speculative_engine.kernels.gemm_blocks import FORMATS, BlockType, CompiledBlockGemm, can_multiply_blocks
from speculative_engine.model.linear_weight import BlockWeight, MakeLinear, Weight

_ROWS_AT_ONCE = 1024
"""Outputs that are converted at once, which bounds the memory for their float32 values."""


def in_blocks(weight: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """Quantises a weight [outputs, inputs] by GGUF's reference rules: uint8 [outputs, bytes of a row].

    kind: "q8_0" or "q4_0"; `inputs` must be a multiple of its blocks.
    """
    parts = weight.split(_ROWS_AT_ONCE)
    return torch.cat([torch.from_numpy(gguf.quants.quantize(part.float().numpy(), _gguf_type(kind))) for part in parts])


def from_blocks(weight: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """The values of a weight in blocks, uint8 [outputs, bytes of a row]: bfloat16 [outputs, inputs]."""
    parts = (np.ascontiguousarray(part.numpy()) for part in weight.split(_ROWS_AT_ONCE))
    return torch.cat(
        [torch.from_numpy(gguf.quants.dequantize(part, _gguf_type(kind))).to(torch.bfloat16) for part in parts]
    )


def _gguf_type(kind: BlockType) -> gguf.GGMLQuantizationType:
    return gguf.GGMLQuantizationType[kind.upper()]


class BlockLinear(nn.Module):
    """A linear layer with a weight in blocks, in compiled code."""

    def __init__(self, kind: BlockType, weight: torch.Tensor, bias: torch.Tensor | None):
        """weight: uint8 [outputs, bytes of a row], supported by `can_multiply_blocks`; bias: bfloat16 [outputs]"""
        super().__init__()
        self.product = CompiledBlockGemm(kind, weight)
        self.out_features, self.in_features = self.product.outputs, self.product.inputs
        self.register_buffer("bias", bias, persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs: bfloat16 [..., in_features] -> bfloat16 [..., out_features]"""
        out = self.product(inputs.reshape(-1, self.in_features), self.bias)
        return out.view(*inputs.shape[:-1], self.out_features)


def maker(
    make_from_tensor: Callable[[torch.Tensor, torch.Tensor | None], nn.Module], kind: BlockType | None
) -> MakeLinear:
    """Returns a function that makes linear layers from weights of any type.

    Weights in blocks stay as they are. Tensors, in bfloat16, are quantised to `kind`, except those with another number
    of inputs than it allows; these, and all if `kind` is None, go to `make_from_tensor`. Without compiled code a layer
    has the values of its blocks in bfloat16, and rows are not rounded.
    """

    def make(weight: Weight, bias: torch.Tensor | None) -> nn.Module:
        if isinstance(weight, torch.Tensor):
            if kind is None or weight.shape[1] % FORMATS[kind].inputs:
                return make_from_tensor(weight, bias)
            weight = BlockWeight(kind, in_blocks(weight, kind))
        if can_multiply_blocks(weight.kind, weight.inputs):
            return BlockLinear(weight.kind, weight.raw, bias)
        return make_from_tensor(from_blocks(weight.raw, weight.kind), bias)

    return make


class BlockEmbedding(nn.Module):
    """An embedding whose rows stay in blocks until they are looked up."""

    def __init__(self, weight: BlockWeight):
        super().__init__()
        self.kind = weight.kind
        self.num_embeddings, self.embedding_dim = weight.outputs, weight.inputs
        self.register_buffer("weight", weight.raw)

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """token_ids [...] -> bfloat16 [..., embedding_dim]"""
        rows = from_blocks(self.weight[token_ids.flatten()], self.kind)
        return rows.view(*token_ids.shape, self.embedding_dim)
