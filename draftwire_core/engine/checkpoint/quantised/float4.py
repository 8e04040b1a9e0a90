"""Weights of 4-bit floats (e2m1).

MXFP4 has blocks of 32 with an exponent each, as in the experts of gpt-oss. NVFP4 has groups of 16 with a scale of 8
bits (e4m3) each, and one scale for all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import BLOCK, checked_scales, exponents
from draftwire_core.engine.checkpoint.quantised.stored_weight import ConvertedWeight, Mxfp4Blocks, unpacked_bytes
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles

GROUP = 16
"""Inputs per scale of NVFP4."""
E2M1_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The numbers of e2m1 by their bits."""


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


@dataclass(frozen=True, slots=True, eq=False)
class _Nvfp4Numbers(ConvertedWeight):
    """Numbers of 4 bits, two neighbouring inputs in a byte, the first in the low bits."""

    packed: torch.Tensor
    """uint8 [outputs, inputs / 2]"""
    scales: torch.Tensor
    """float8_e4m3fn [outputs, groups]"""
    whole: torch.Tensor
    """float32 []: the scale of all groups"""
    divides: bool
    """Whether the scales are divided by `whole`, instead of multiplied."""

    def rows(self, first: int, last: int) -> torch.Tensor:
        scales = self.scales[first:last].float()
        scales = scales / self.whole if self.divides else scales * self.whole
        numbers = E2M1_VALUES[unpacked_bytes(self.packed[first:last]).int()].unflatten(1, (-1, GROUP))
        return (numbers * scales[..., None]).flatten(1)


def nvfp4(
    files: TensorFiles, layer: str, outputs: int, inputs: int, *, packed: str, whole: str, divides: bool
) -> ConvertedWeight:
    """The weight of a linear layer. Raises ModelLoadError, which names the tensor, if it is damaged.

    packed, whole: names of the tensors of numbers and of the scale of all groups, after that of the layer. divides:
    whether the groups' scales are divided by it.
    """
    name = f"{layer}.{packed}"
    if inputs % BLOCK:
        raise files.refusal(name, f"has {inputs} inputs, which are not a multiple of {BLOCK}")
    numbers = files.tensor(name, [(outputs, inputs // 2)], [torch.uint8])
    scales = checked_scales(files, f"{layer}.weight_scale", [(outputs, inputs // GROUP)], [torch.float8_e4m3fn])
    of_all = checked_scales(files, f"{layer}.{whole}", [(1,), ()], FLOATS)
    if divides and not of_all.all():
        raise files.refusal(f"{layer}.{whole}", "is 0, and the scales of groups are divided by it")
    tensors = {packed: numbers, "weight_scale": scales, whole: of_all}
    single = of_all.float().reshape(())
    return _Nvfp4Numbers(outputs, inputs, "nvfp4", tensors, numbers, scales, single, divides)
