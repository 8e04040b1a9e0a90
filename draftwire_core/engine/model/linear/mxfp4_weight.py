"""Weights in blocks of MXFP4, as safetensors files have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from draftwire_core.engine.checkpoint.quantised.stored_weight import Mxfp4Blocks
from draftwire_core.engine.kernels.products.compiled_product import CompiledProduct
from draftwire_core.engine.model.linear.block_weight import BlockWeight
from draftwire_core.engine.model.linear.linear_weight import QuantisedWeight


class Mxfp4Weight(QuantisedWeight):
    """A weight in blocks that are reordered, to GGUF's, when they are packed."""

    def __init__(self, stored: Mxfp4Blocks):
        self.stored = stored
        self.outputs, blocks, half = stored.blocks.shape
        self.inputs = 2 * half * blocks

    @property
    def type_name(self) -> str:
        """The name of its type."""
        return "mxfp4"

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weight's tensors, by name."""
        return {"blocks": self.stored.blocks, "scales": self.stored.exponents}

    def product(self) -> CompiledProduct | None:
        """Packs it for compiled code; None if there is none for it."""
        return self.in_blocks().product()

    def values(self) -> torch.Tensor:
        """The weight's values, bfloat16 [outputs, inputs]."""
        return self.in_blocks().values()

    def with_outputs_of(self, others: Sequence[QuantisedWeight]) -> QuantisedWeight | None:
        """One weight with its outputs and then those of `others`; None if their types are not all equal."""
        alike = [other.in_blocks() for other in others if isinstance(other, Mxfp4Weight)]
        return self.in_blocks().with_outputs_of(alike) if len(alike) == len(others) else None

    def in_blocks(self) -> BlockWeight:
        """The weight in blocks of GGUF."""
        return BlockWeight("mxfp4", self.stored.as_gguf())
