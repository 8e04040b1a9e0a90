"""Weights of 8-bit floats (e4m3) from a tensor of numbers and one of scales, and the formats that consist of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import checked_float_group, checked_scales, exponents
from draftwire_core.engine.checkpoint.quantised.stored_weight import FloatWeight
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles

FLOAT8 = torch.float8_e4m3fn
SINGLE: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))
"""Shapes of a single scale."""


def float8(
    files: TensorFiles, name: str, scales: str, outputs: int, inputs: int, block: tuple[int, int] | None
) -> FloatWeight:
    """A weight. Raises ModelLoadError, which names the tensor, if it is damaged or cannot be multiplied.

    name, scales: of the tensors; scales in uint8 are powers of two. block: outputs and inputs per scale; None for a
    single scale.
    """
    rows, group = block or (outputs, inputs)
    across = -(-outputs // rows), -(-inputs // group)
    shapes: Sequence[tuple[int, ...]] = SINGLE if block is None else [across, (across[0], 1, across[1], 1)]
    if block == (1, inputs):
        shapes = [*shapes, (outputs,)]
    found = {"weight": files.tensor(name, [(outputs, inputs)], [FLOAT8])}
    if files.dtype(scales) == torch.uint8:
        found["scales"] = exponents(files, scales, across).view(torch.float8_e8m0fnu)
    else:
        found["scales"] = checked_scales(files, scales, shapes, [*FLOATS, torch.float8_e8m0fnu])
    group = checked_float_group(files, name, inputs, group)
    return FloatWeight(outputs, inputs, group, rows, found, files.refusal(name, "has elements that are no numbers"))


class FbgemmFp8:
    """A checkpoint with quantisation method "fbgemm_fp8": a scale per output."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(("quant_method", "activation_scale_ub", "modules_to_not_convert"))
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> FloatWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        name = f"{layer}.weight"
        if self._files.dtype(name) != FLOAT8:
            return None
        return float8(self._files, name, f"{name}_scale", outputs, inputs, (1, inputs))
