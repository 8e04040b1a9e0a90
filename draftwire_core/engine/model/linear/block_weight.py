"""Weights in the blocks of GGUF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from draftwire_core.engine.kernels.huge_pages import empty_in_huge_pages, stacked_in_huge_pages
from draftwire_core.engine.kernels.library import library
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.kernels.products.gemm_blocks import (
    FORMATS,
    BlockType,
    CompiledBlockGemm,
    block_values,
    can_multiply_blocks,
)
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight

_VALUES_AT_ONCE = 1 << 18
"""Values that are converted at once, which bounds the memory for them as float32 numbers."""


def in_blocks(weight: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """Quantises a weight [outputs, inputs] by GGUF's reference rules: uint8 [outputs, bytes of a row].

    kind: "q8_0" or "q4_0"; `inputs` must be a multiple of its blocks.
    """
    quants, block_type = _library(kind)
    form = FORMATS[kind]
    outputs, inputs = weight.shape
    found = empty_in_huge_pages((outputs, inputs // form.inputs * form.size), torch.uint8)
    at_once = max(1, _VALUES_AT_ONCE // inputs)
    for part, into in zip(weight.split(at_once), found.split(at_once), strict=True):
        into.copy_(torch.from_numpy(quants.quantize(part.float().numpy(), block_type)))
    return found


def from_blocks(weight: torch.Tensor, kind: BlockType) -> torch.Tensor:
    """The values of a weight in blocks, uint8 [outputs, bytes of a row]: bfloat16 [outputs, inputs]."""
    if library() is not None:
        return block_values(kind, weight)
    quants, block_type = _library(kind)
    form = FORMATS[kind]
    outputs, width = weight.shape
    found = torch.empty(outputs, width // form.size * form.inputs, dtype=torch.bfloat16)
    at_once = max(1, _VALUES_AT_ONCE // found.shape[1])
    for part, into in zip(weight.split(at_once), found.split(at_once), strict=True):
        values = quants.dequantize(np.ascontiguousarray(part.numpy()), block_type)
        into.copy_(torch.from_numpy(values))
    return found


def _library(kind: BlockType) -> tuple[Any, Any]:
    """GGUF's conversions, and its name of the type. Imported here, since weights of other types do without."""
    import gguf.quants

    return gguf.quants, gguf.GGMLQuantizationType[kind.upper()]


class BlockWeight(QuantisedWeight):
    """A weight in blocks."""

    def __init__(self, kind: BlockType, raw: torch.Tensor):
        """raw: uint8 [outputs, bytes of a row]; may be a view of a mapped file, which must not be written to"""
        self.kind = kind
        self.raw = raw
        form = FORMATS[kind]
        self.outputs, self.inputs = len(raw), int(raw.shape[1]) // form.size * form.inputs

    @property
    def type_name(self) -> str:
        """The name of its type."""
        return self.kind

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weight's tensors, by name."""
        return {"weight": self.raw}

    def product(self) -> CompiledProduct | None:
        """Packs it for compiled code; None if there is none for it."""
        return CompiledBlockGemm(self.kind, self.raw) if can_multiply_blocks(self.kind, self.inputs) else None

    def values(self) -> torch.Tensor:
        """The weight's values, bfloat16 [outputs, inputs]."""
        return from_blocks(self.raw, self.kind)

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values of some outputs, int64 [rows]: bfloat16 [rows, inputs]."""
        return from_blocks(self.raw[outputs], self.kind)

    def with_outputs_of(self, others: Sequence[QuantisedWeight]) -> QuantisedWeight | None:
        """One weight with its outputs and then those of `others`; None if their types are not all equal."""
        alike = [other for other in others if isinstance(other, BlockWeight) and other.kind == self.kind]
        if len(alike) < len(others):
            return None
        return BlockWeight(self.kind, stacked_in_huge_pages([self.raw, *(other.raw for other in alike)]))
