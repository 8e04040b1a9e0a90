"""Linear layers on the Triton kernels of GPUs, with plain weights or with weights of few bits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from draftwire_core.engine.model.cuda.kernels.packed_product import multiply_packed
from draftwire_core.engine.model.cuda.kernels.product import ALL_CUTS, Cuts, Gate, multiply
from draftwire_core.engine.model.cuda.kernels.product_trial import ProductTrial, try_product
from draftwire_core.engine.model.cuda.kernels.rank_sum import add_ranks
from draftwire_core.engine.model.cuda.weights.device_weight import DeviceWeight, alike, joined
from draftwire_core.engine.model.ranks.sharded_layers import SummedLinear


class KernelLinear(nn.Module):
    """A linear layer, or two of which the first gates the second."""

    def __init__(
        self,
        weight: Tensor | DeviceWeight,
        bias: Tensor | None,
        gate: Gate | None = None,
        dtype: torch.dtype | None = None,
    ):
        """dtype: of the outputs; by default that of the inputs"""
        super().__init__()
        self.packed: DeviceWeight | None = None
        """The weight, if it is of few bits."""
        if isinstance(weight, DeviceWeight):
            self.packed = weight
        else:
            self.weight = nn.Parameter(weight.data, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.data, requires_grad=False)
        self.gate = gate
        self.dtype = dtype
        outputs, self.in_features = (int(each) for each in weight.shape)
        self.out_features = outputs if gate is None else outputs // 2
        self.cuts: Cuts = ALL_CUTS
        """The ways to cut the product that may be used; see `try_product`."""

    def forward(self, inputs: Tensor) -> Tensor:
        """inputs [..., in_features] -> [..., out_features]"""
        with torch.cuda.device_of(inputs):  # Triton launches on the current device
            out = self.rows(inputs.reshape(-1, self.in_features))
        return out.view(*inputs.shape[:-1], self.out_features)

    def rows(self, inputs: Tensor, add_to: Tensor | None = None) -> Tensor:
        """inputs [rows, in_features] -> [rows, out_features]; see `multiply`."""
        if self.packed is None:
            return multiply(
                inputs,
                self.weight,
                self.bias,
                add_to=add_to,
                gate=self.gate,
                dtype=self.dtype,
                cuts=self.cuts,
            )
        if self.packed.order is not None:
            inputs = inputs.index_select(1, self.packed.order)
        return multiply_packed(
            inputs,
            self.packed,
            self.bias,
            add_to=add_to,
            gate=self.gate,
            dtype=self.dtype,
            row_blocks=self.cuts.row_blocks,
        )


class MixedKernelLinear(nn.Module):
    """Linear layers with the same inputs, of which some cannot be joined: their outputs, in turn."""

    def __init__(self, parts: Sequence[KernelLinear]):
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def rows(self, inputs: Tensor) -> Tensor:
        """inputs [rows, inputs] -> [rows, outputs of all parts]"""
        return torch.cat([part.rows(inputs) for part in self.parts], 1)


class SummedKernelLinear(nn.Module):
    """A linear layer whose inputs are split among ranks; their parts are added in the order of ranks."""

    def __init__(self, layer: SummedLinear):
        super().__init__()
        self.own = joined_linear([layer.linear])
        self.bias = layer.bias
        self._ranks = layer.ranks

    def rows(self, inputs: Tensor, add_to: Tensor | None = None) -> Tensor:
        """inputs [rows, inputs of this rank] -> [rows, outputs]; see `multiply`."""
        return add_ranks(self._ranks.gathered(self.own.rows(inputs)), self.bias, add_to)


def output_linear(layer: nn.Module) -> KernelLinear | SummedKernelLinear:
    """A layer on the kernels, whose inputs may be split among ranks."""
    return SummedKernelLinear(layer) if isinstance(layer, SummedLinear) else joined_linear([layer])


def can_be_output(layer: nn.Module) -> bool:
    """Whether `output_linear` can make such a layer."""
    return can_join([layer.linear]) and layer.own is None if isinstance(layer, SummedLinear) else can_join([layer])


def can_join(linears: Sequence[nn.Module]) -> bool:
    """Whether `joined_linear` can make one layer of these."""
    packed = [linear.packed for linear in linears if type(linear) is KernelLinear and linear.packed is not None]
    if packed:
        return len(packed) == len(linears) and all(alike(packed[0], each) for each in packed)
    return all(type(linear) is nn.Linear for linear in linears)


def joined_linear(
    linears: Sequence[nn.Module], gate: Gate | None = None, dtype: torch.dtype | None = None
) -> KernelLinear:
    """Joins linear layers into one, whose memory they share from now on. gate, dtype: as for KernelLinear."""
    biases = [linear.bias for linear in linears]
    bias = None
    if any(each is not None for each in biases):
        like = next(each for each in biases if each is not None)
        bias = torch.cat(
            [
                like.new_zeros(linear.out_features) if each is None else each.data
                for linear, each in zip(linears, biases, strict=True)
            ]
        )
    packed = [linear.packed for linear in linears if isinstance(linear, KernelLinear) and linear.packed is not None]
    weight: Tensor | DeviceWeight | None
    if len(linears) == 1:
        weight = packed[0] if packed else linears[0].weight
    else:
        weight = joined(packed) if packed else torch.cat([linear.weight.data for linear in linears])
    assert weight is not None, "of layers that cannot be joined"
    first = 0
    for linear in linears:
        last = first + linear.out_features
        if isinstance(weight, DeviceWeight):
            linear.packed = weight.part(first, last)
        else:
            linear.weight.data = weight[first:last]
        if bias is not None and linear.bias is not None:
            linear.bias.data = bias[first:last]
        first = last
    return KernelLinear(weight, bias, gate, dtype)


def projecting_linear(linears: Sequence[nn.Module]) -> KernelLinear | MixedKernelLinear:
    """A layer with the outputs of all linear layers, in turn: a product for those that follow each other and can be
    joined, as `joined_linear` does."""
    runs: list[list[nn.Module]] = []
    for linear in linears:
        if runs and can_join([*runs[-1], linear]):
            runs[-1].append(linear)
        else:
            runs.append([linear])
    parts = [joined_linear(run) for run in runs]
    return parts[0] if len(parts) == 1 else MixedKernelLinear(parts)


def try_products(model: PreTrainedModel) -> list[str]:
    """Sets the cuts that each product of a model may use. Returns those that it may not, in words.

    Products of one shape are tried once.
    """
    trials: dict[tuple[object, ...], ProductTrial] = {}
    for each in model.modules():
        if not isinstance(each, KernelLinear):
            continue
        packed = each.packed
        weight: Tensor | DeviceWeight = each.weight if packed is None else packed
        key = (None if packed is None else packed.form, weight.shape, each.gate)
        if key not in trials:
            with torch.cuda.device_of(each.weight if packed is None else packed.codes):
                trials[key] = try_product(weight, each.gate, model.dtype)
        each.cuts = trials[key].cuts
    return [lost for trial in trials.values() for lost in trial.lost]
