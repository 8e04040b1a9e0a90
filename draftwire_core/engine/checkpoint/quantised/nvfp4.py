"""Weights of NVFP4: numbers of 4 bits (e2m1) in groups of 16, with a scale of 8 bits (e4m3) each, and one for all."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftwire_core.engine.checkpoint.quantised.stored_format import BLOCK, checked_scales
from draftwire_core.engine.checkpoint.quantised.stored_weight import ConvertedWeight, unpacked_bytes
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles

GROUP = 16
"""Inputs per scale."""
_VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
"""The numbers of e2m1 by their bits."""


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
        numbers = _VALUES[unpacked_bytes(self.packed[first:last]).int()].unflatten(1, (-1, GROUP))
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
