"""Blocks of MXFP4, 32 numbers of 4 bits (e2m1) with an exponent each, and the format of gpt-oss, whose experts have
them."""

from __future__ import annotations

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import BLOCK, exponents
from draftwire_core.engine.checkpoint.quantised.stored_weight import Mxfp4Blocks
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles


class Mxfp4:
    """A checkpoint with quantisation method "mxfp4", whose linear layers are not quantised."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(("quant_method", "modules_to_not_convert"))
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> None:
        """None: linear layers are not quantised."""

    def experts(self, name: str, count: int, outputs: int, inputs: int) -> list[Mxfp4Blocks]:
        """The weights of a layer's experts, by the name of their tensors without its end. Raises ModelLoadError."""
        files, across = self._files, -(-inputs // BLOCK)
        if inputs % BLOCK:
            raise files.refusal(f"{name}_blocks", f"has {inputs} inputs, which are not a multiple of {BLOCK}")
        blocks = files.tensor(f"{name}_blocks", [(count, outputs, across, BLOCK // 2)], [torch.uint8])
        scales = exponents(files, f"{name}_scales", (count, outputs, across))
        return [Mxfp4Blocks(*pair) for pair in zip(blocks, scales, strict=True)]


def mxfp4_numbers(files: TensorFiles, packed: str, scales: str, outputs: int, inputs: int) -> Mxfp4Blocks:
    """The weight of a linear layer from its tensors of numbers, two in a byte, and of exponents.

    Raises ModelLoadError, which names the tensor, if it is damaged.
    """
    if inputs % BLOCK:
        raise files.refusal(packed, f"has {inputs} inputs, which are not a multiple of {BLOCK}")
    numbers = files.tensor(packed, [(outputs, inputs // 2)], [torch.uint8])
    return Mxfp4Blocks(numbers.unflatten(1, (-1, BLOCK // 2)), exponents(files, scales, (outputs, inputs // BLOCK)))
