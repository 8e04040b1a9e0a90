"""Weights of 16-bit floats with 5 bits of exponent (float16), as GGUF files have them.

Rounding them to bfloat16 would lose three bits of each weight's fraction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from draftwire_core.engine.kernels.huge_pages import stacked_in_huge_pages
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm import CompiledGemm, can_multiply
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight


class HalfWeight(QuantisedWeight):
    """A weight of float16 numbers."""

    def __init__(self, raw: torch.Tensor):
        """raw: float16 [outputs, inputs]; may be a view of a mapped file, which must not be written to"""
        self.raw = raw
        self.outputs, self.inputs = raw.shape

    @property
    def type_name(self) -> str:
        """The name of its type."""
        return "f16"

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weight's tensors, by name."""
        return {"weight": self.raw}

    def product(self) -> CompiledProduct | None:
        """Packs it for compiled code; None if there is none for it."""
        return CompiledGemm(self.raw) if can_multiply(self.raw, torch.float16) else None

    def values(self) -> torch.Tensor:
        """The weight's values, bfloat16 [outputs, inputs]."""
        return self.raw.to(torch.bfloat16)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values of some outputs, int64 [rows]: bfloat16 [rows, inputs]."""
        return self.raw[outputs].to(torch.bfloat16)

    def with_outputs_of(self, others: Sequence[QuantisedWeight]) -> QuantisedWeight | None:
        """One weight with its outputs and then those of `others`; None if their types are not all equal."""
        alike = [other.raw for other in others if isinstance(other, HalfWeight)]
        return HalfWeight(stacked_in_huge_pages([self.raw, *alike])) if len(alike) == len(others) else None
