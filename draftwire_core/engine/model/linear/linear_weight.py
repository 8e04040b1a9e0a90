"""The weights of linear layers as checkpoints have them: tensors, or quantised weights that are kept as they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, TypeVar

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from draftwire_core.engine.kernels.huge_pages import stacked_in_huge_pages
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.model.file_pages import let_go_of


class QuantisedWeight(ABC):
    """A quantised weight [outputs, inputs]. Its tensors may be views of a mapped file, which must not be written to."""

    outputs: int
    """Number of outputs."""
    inputs: int
    """Number of inputs."""
    order: torch.Tensor | None = None
    """int64 [inputs]: the order in which `product` takes the inputs; None for their own."""

    @property
    @abstractmethod
    def type_name(self) -> str:
        """The name of its type, such as "q4_0" or "int4"."""

    @property
    @abstractmethod
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weight's tensors, by name."""

    @abstractmethod
    def product(self) -> CompiledProduct | None:
        """Packs it for compiled code; None if there is none for it."""

    @abstractmethod
    def values(self) -> torch.Tensor:
        """The weight's values, bfloat16 [outputs, inputs]."""

    @abstractmethod
    def with_outputs_of(self, others: Sequence[QuantisedWeight]) -> QuantisedWeight | None:
        """One weight with its outputs and then those of `others`; None if their types are not all equal."""


Weight: TypeAlias = torch.Tensor | QuantisedWeight
"""A weight [outputs, inputs]."""

MakeLinear = Callable[[Weight, torch.Tensor | None], nn.Module]
"""Makes a linear layer, with `in_features` and `out_features`, from a weight and a bias [outputs]."""


class StoredLinear(nn.Module):
    """A linear layer as it lies in a checkpoint, with a quantised weight. It is replaced before it runs."""

    def __init__(self, weight: QuantisedWeight, bias: torch.Tensor | None):
        super().__init__()
        self.stored = weight
        self.out_features, self.in_features = weight.outputs, weight.inputs
        for name, tensor in weight.tensors.items():
            self.register_buffer(name, tensor)
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
        return module.stored
    if isinstance(module, Conv1D):
        turned: torch.Tensor = module.weight.data.t().contiguous()
        return turned
    if type(module) is nn.Linear and isinstance(module.weight, torch.Tensor):
        return module.weight.data
    return None


def joined(linears: Sequence[nn.Module], make_linear: MakeLinear) -> nn.Module:
    """Makes one linear layer of several with the same inputs: a single product where their weights have one type."""
    weights = [weight for weight in map(weight_of, linears) if weight is not None]
    biases = [None if linear.bias is None else linear.bias.data for linear in linears]
    found = [bias for bias in biases if bias is not None]
    bias = torch.cat(found) if found else None
    plain = [weight for weight in weights if isinstance(weight, torch.Tensor)]
    if len(plain) == len(weights):
        return make_linear(stacked_in_huge_pages(plain), bias)
    first, *others = [weight for weight in weights if isinstance(weight, QuantisedWeight)]
    whole = None if plain else first.with_outputs_of(others)
    if whole is not None:
        return make_linear(whole, bias)
    return JoinedLinear([make_linear(weight, bias) for weight, bias in zip(weights, biases, strict=True)])


class OutputRange(nn.Module):
    """A range of a joined linear layer's outputs, for code that calls the layers one by one."""

    def __init__(self, linear: nn.Module, first: int, last: int):
        super().__init__()
        self._linear = (linear,)  # in a tuple, so that it is not registered twice
        self._first, self._last = first, last
        self.out_features = last - first

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """inputs [..., inputs] -> [..., outputs of the range]"""
        return self._linear[0](inputs)[..., self._first : self._last].to(inputs.dtype)


def join_layers(parent: nn.Module, names: tuple[str, ...], make_linear: MakeLinear) -> nn.Module:
    """Joins the named linear layers of `parent` into one, and replaces each by its range of the outputs."""
    parts = [getattr(parent, name) for name in names]
    whole = joined(parts, make_linear)
    first = 0
    for name, part in zip(names, parts, strict=True):
        setattr(parent, name, OutputRange(whole, first, first + part.out_features))
        first += part.out_features
        let_go_of(part)
    return whole


class _HasOutputs(Protocol):
    @property
    def outputs(self) -> int: ...


_Part = TypeVar("_Part", bound=_HasOutputs)


def in_parts(parts: Sequence[_Part], first: int, last: int) -> Iterator[tuple[_Part, int, int]]:
    """The parts that hold the outputs from `first` to `last` - 1, each with the range of its own outputs."""
    for part in parts:
        if first < part.outputs and last > 0:
            yield part, max(first, 0), min(last, part.outputs)
        first, last = first - part.outputs, last - part.outputs
