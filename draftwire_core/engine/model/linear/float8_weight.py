"""Weights of 8-bit floats (e4m3), as checkpoints have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from draftwire_core.engine.checkpoint.quantised.stored_weight import FloatWeight
from draftwire_core.engine.kernels.library import library
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm_fp8 import CompiledFp8Gemm
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight, in_parts

_ROWS_AT_ONCE = 1024
"""Outputs whose values are computed at once, which bounds the memory for their float32 values."""


class Float8Weight(QuantisedWeight):
    """A weight of 8-bit floats."""

    def __init__(self, *parts: FloatWeight):
        """parts: weights with the same inputs and groups, whose outputs follow each other"""
        self.parts = parts
        self.group, self.inputs = parts[0].group, parts[0].inputs
        self.outputs = sum(part.outputs for part in parts)

    @property
    def type_name(self) -> str:
        """The name of its type."""
        return "fp8"

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weight's tensors, by name; of a single part."""
        (part,) = self.parts
        return part.tensors

    def rows(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads the outputs from `first` to `last` - 1. Raises ModelLoadError for elements that are no numbers."""
        found = [part.rows(begin, end) for part, begin, end in in_parts(self.parts, first, last)]
        codes = torch.cat([values.view(torch.uint8) for values, _ in found])
        return codes.view(torch.float8_e4m3fn), torch.cat([scales for _, scales in found])

    def product(self) -> CompiledProduct | None:
        """Packs it for compiled code; None if there is none for it."""
        return CompiledFp8Gemm(self.rows, self.outputs, self.inputs, self.group) if library() is not None else None

    def values(self) -> torch.Tensor:
        """The weight's values, bfloat16 [outputs, inputs]."""
        found = []
        for first in range(0, self.outputs, _ROWS_AT_ONCE):
            floats, scales = self.rows(first, min(first + _ROWS_AT_ONCE, self.outputs))
            of_inputs = scales.repeat_interleave(self.group, 1)[:, : self.inputs]
            found.append((floats.float() * of_inputs).to(torch.bfloat16))
        return torch.cat(found)

    def with_outputs_of(self, others: Sequence[QuantisedWeight]) -> QuantisedWeight | None:
        """One weight with its outputs and then those of `others`; None if their types are not all equal."""
        alike = [each for each in others if isinstance(each, Float8Weight) and each.group == self.group]
        if len(alike) < len(others):
            return None
        return Float8Weight(*self.parts, *(part for each in alike for part in each.parts))
