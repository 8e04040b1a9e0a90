"""The weights of linear layers as checkpoints have them: tensors, or blocks that are kept as they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from speculative_engine.kernels.gemm_blocks import FORMATS, BlockType


@dataclass(frozen=True, slots=True, eq=False)
class BlockWeight:
    """A weight in blocks."""

    kind: BlockType
    raw: torch.Tensor
    """uint8 [outputs, bytes of a row]; may be a view of a mapped file, which must not be written to."""

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return len(self.raw)

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        form = FORMATS[self.kind]
        return int(self.raw.shape[1]) // form.size * form.inputs


Weight: TypeAlias = torch.Tensor | BlockWeight
"""A weight [outputs, inputs]."""

MakeLinear = Callable[[Weight, torch.Tensor | None], nn.Module]
"""Makes a linear layer, with `in_features` and `out_features`, from a weight and a bias [outputs]."""


class StoredLinear(nn.Module):
    """A linear layer as it lies in a checkpoint, with a weight in blocks. It is replaced before it runs."""

    def __init__(self, weight: BlockWeight, bias: torch.Tensor | None):
        super().__init__()
        self.kind = weight.kind
        self.out_features, self.in_features = weight.outputs, weight.inputs
        self.register_buffer("weight", weight.raw)
        self.register_buffer("bias", bias)


class JoinedLinear(nn.Module):
    """A linear layer whose outputs come from several others in turn, with weights of different types."""

    def __init__(self, parts: Sequence[nn.Module]):
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.in_features = parts[0].in_features
        self.out_features = sum(part.out_features for part in parts)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., in_features] -> [..., out_features]"""
        return torch.cat([part(inputs) for part in self.parts], -1)


def parts_of(linear: nn.Module) -> list[nn.Module]:
    """The parts of a linear layer; itself if it is not joined."""
    return list(linear.parts) if isinstance(linear, JoinedLinear) else [linear]


def weight_of(module: nn.Module) -> Weight | None:
    """The weight of a linear layer of transformers or of a checkpoint; None for other modules."""
    if isinstance(module, StoredLinear):
        return BlockWeight(module.kind, module.weight)
    if isinstance(module, Conv1D):
        turned: torch.Tensor = module.weight.data.t().contiguous()
        return turned
    return module.weight.data if type(module) is nn.Linear else None


def joined(linears: Sequence[nn.Module], make_linear: MakeLinear) -> nn.Module:
    """Makes one linear layer of several with the same inputs: a single product where their weights have one type."""
    weights = [weight_of(linear) for linear in linears]
    biases = [None if linear.bias is None else linear.bias.data for linear in linears]
    found = [bias for bias in biases if bias is not None]
    bias = torch.cat(found) if found else None
    if all(isinstance(weight, torch.Tensor) for weight in weights):
        return make_linear(torch.cat([weight for weight in weights if isinstance(weight, torch.Tensor)]), bias)
    kinds = {weight.kind if isinstance(weight, BlockWeight) else None for weight in weights}
    (kind, *others) = kinds
    if kind is not None and not others:
        raw = torch.cat([weight.raw for weight in weights if isinstance(weight, BlockWeight)])
        return make_linear(BlockWeight(kind, raw), bias)
    return JoinedLinear(
        [make_linear(weight, bias) for weight, bias in zip(weights, biases, strict=True) if weight is not None]
    )
