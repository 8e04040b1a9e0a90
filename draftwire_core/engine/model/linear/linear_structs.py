"""Linear layers with compiled products, as compiled code takes them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import nn

from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.structs import Linear
from draftwire_core.engine.model.linear.linear_weight import parts_of


class LinearStructs:
    """The structs of several linear layers; keeps what they point to alive."""

    def __init__(self, linears: Sequence[nn.Module]):
        """linears: supported by `are_compiled`"""
        self._linears = tuple(linears)
        self._chained: list[Linear] = []
        self.array = (Linear * len(linears))(*map(self._struct, linears))
        """One struct for each layer, in order."""

    def _struct(self, linear: nn.Module) -> Linear:
        """A linear layer, as a chain of its parts."""
        found: Linear | None = None
        for part in reversed(parts_of(linear)):
            product = part.product
            following = None if found is None else ctypes.addressof(found)
            found = Linear(
                product.stored.data_ptr(), pointer(product.scales), pointer(part.bias), following,
                product.outputs, product.inputs, product.group, product.number,
            )  # fmt: skip
            self._chained.append(found)
        assert found is not None, "a linear layer has a part"
        return found


def are_compiled(linears: Sequence[nn.Module]) -> bool:
    """Whether compiled code multiplies by the weights of all these layers, and nothing is to be done around it."""
    return all(
        isinstance(getattr(part, "product", None), CompiledProduct) for linear in linears for part in parts_of(linear)
    )


def pointer(tensor: torch.Tensor | None) -> int | None:
    """Returns the address of a tensor's elements; None without a tensor."""
    return None if tensor is None else tensor.data_ptr()
