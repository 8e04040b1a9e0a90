"""Weights of integers in groups, as checkpoints of integer formats have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from draftwire_core.engine.checkpoint.quantised.stored_weight import IntegerRows, IntegerWeight
from draftwire_core.engine.kernels.library import library
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm_groups import CompiledGroupGemm
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight, in_parts

_ROWS_AT_ONCE = 1024
"""Outputs whose values are computed at once, which bounds the memory for their float32 values."""


class GroupWeight(QuantisedWeight):
    """A weight of integers in groups."""

    def __init__(self, *parts: IntegerWeight):
        """parts: weights with the same bits, inputs, groups and order, whose outputs follow each other"""
        self.parts = parts
        first = parts[0]
        self.bits, self.group = first.bits, first.group
        self.outputs, self.inputs = sum(part.outputs for part in parts), first.inputs
        self.order = first.order

    @property
    def type_name(self) -> str:
        """The name of its type."""
        return f"int{self.bits}"

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weight's tensors, by name; of a single part."""
        (part,) = self.parts
        return part.tensors

    def rows(self, first: int, last: int) -> IntegerRows:
        """Reads the outputs from `first` to `last` - 1, with inputs in the order in which groups have them."""
        found = [part.rows(begin, end) for part, begin, end in in_parts(self.parts, first, last)]
        integers, scales, zeros = map(torch.cat, zip(*found, strict=True))
        return IntegerRows(integers if self.order is None else integers[:, self.order], scales, zeros)

    def product(self) -> CompiledProduct | None:
        """Packs it for compiled code; None if there is none for it."""
        if library() is None:
            return None
        return CompiledGroupGemm(self.rows, self.bits, self.outputs, self.inputs, self.group)

    def values(self) -> torch.Tensor:
        """The weight's values, bfloat16 [outputs, inputs]."""
        found = []
        for first in range(0, self.outputs, _ROWS_AT_ONCE):
            integers, scales, zeros = self.rows(first, min(first + _ROWS_AT_ONCE, self.outputs))
            wholes = integers.unflatten(1, (-1, self.group)).float() - zeros[..., None].float()
            found.append((wholes * scales[..., None]).flatten(1).to(torch.bfloat16))
        values = torch.cat(found)
        return values if self.order is None else values[:, self.order.argsort()]

    def with_outputs_of(self, others: Sequence[QuantisedWeight]) -> QuantisedWeight | None:
        """One weight with its outputs and then those of `others`; None if their types are not all equal."""
        alike = [each for each in others if isinstance(each, GroupWeight) and _are_alike(each, self)]
        if len(alike) < len(others):
            return None
        return GroupWeight(*self.parts, *(part for each in alike for part in each.parts))


def _are_alike(one: GroupWeight, other: GroupWeight) -> bool:
    orders = [torch.arange(weight.inputs) if weight.order is None else weight.order for weight in (one, other)]
    return (one.bits, one.group) == (other.bits, other.group) and bool(torch.equal(*orders))
