"""Stand-ins for the weights of modules that multiply by them on their own, as routers of experts do."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from draftwire_core.engine.model.linear.linear_weight import MakeLinear


class PackedWeight:
    """A weight for `torch.nn.functional.linear` only, in whose place a packed linear layer multiplies.

    The code that has the weight may also convert it to another type.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None, make_linear: MakeLinear):
        """weight [outputs, inputs]; bias: what the code passes together with the weight, [outputs]"""
        self._weight, self._bias, self._make_linear = weight, bias, make_linear
        self.products = nn.ModuleDict()
        """The linear layers that have been made, by the type of their weight."""
        self._dtype = weight.dtype
        self._conversions = {weight.dtype: self}
        self._linear: nn.Module | None = None

    @classmethod
    def replace(cls, owner: nn.Module, make_linear: MakeLinear) -> None:
        """Puts a stand-in in the place of `owner.weight`, in place. The linear layers become modules of the owner."""
        bias = getattr(owner, "bias", None)
        stand_in = cls(owner.weight.data, None if bias is None else bias.data, make_linear)
        del owner.weight
        owner.weight = stand_in
        owner.products_of_weight = stand_in.products

    @property
    def dtype(self) -> torch.dtype:
        """The type of the weight."""
        return self._dtype

    @property
    def shape(self) -> torch.Size:
        """Outputs and inputs."""
        return self._weight.shape

    @property
    def device(self) -> torch.device:
        """The device of the weight."""
        return self._weight.device

    def to(self, dtype: torch.dtype) -> PackedWeight:
        """The weight converted to another type."""
        found = self._conversions.get(dtype)
        if found is None:
            found = copy.copy(self)
            found._dtype, found._linear = dtype, None
            self._conversions[dtype] = found
        return found

    type = to

    def float(self) -> PackedWeight:
        """The weight converted to float32."""
        return self.to(torch.float32)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Takes the place of torch's functions of weights."""
        if func is not nn.functional.linear:
            return NotImplemented
        return _multiply(*args, **(kwargs or {}))

    def linear(self) -> nn.Module:
        """The linear layer. It is made at its first use: code may have one type of weight and multiply by another."""
        if self._linear is None:
            bias = None if self._bias is None else self._bias.to(self._dtype)
            self._linear = self._make_linear(self._weight.to(self._dtype), bias)
            self.products[str(self._dtype).replace(".", " ")] = self._linear
        return self._linear


def _multiply(input: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None) -> torch.Tensor:
    assert (bias is None) == (weight._bias is None), "the bias is part of the linear layer"
    product: torch.Tensor = weight.linear()(input)
    return product
