"""Weights of 8-bit floats (e4m3) from a tensor of numbers and one of scales, and the formats that consist of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import (
    KV_SCALES,
    checked_float_group,
    checked_scales,
    exponents,
    pass_over_input_scales,
)
from draftwire_core.engine.checkpoint.quantised.stored_weight import FloatWeight
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles

FLOAT8 = torch.float8_e4m3fn
SINGLE: tuple[tuple[int, ...], ...] = ((1,), (), (1, 1))
"""Shapes of a single scale."""
_KNOWN = frozenset(["quant_method", "activation_scheme", "weight_block_size", "fmt", "scale_fmt", "kv_cache_scheme"])
_KNOWN |= {"modules_to_not_convert", "ignored_layers"}  # the tensors show it
_KNOWN |= {"expert_dtype"}
_STATIC = "static"
_MXFP8_BLOCK = [1, 32]
"""Outputs and inputs per scale, a power of two, of the method "mxfp8"."""


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


class FineGrainedFp8:
    """A checkpoint with quantisation method "fp8" or "mxfp8", as of DeepSeek, Qwen and Mistral.

    A scale belongs to each block of outputs and inputs, or to the whole weight. AutoFP8 wrote the same under other
    names.
    """

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        self._static = fields.one_of("activation_scheme", (None, "dynamic", _STATIC)) == _STATIC
        fields.one_of("fmt", (None, "e4m3", "float8_e4m3fn"))
        fields.one_of("scale_fmt", (None, "float", "ue8m0"))
        fields.one_of("expert_dtype", (None, "fp8"))
        if fields["kv_cache_scheme"]:
            files.pass_over(KV_SCALES)
        block = fields["weight_block_size"] or (_MXFP8_BLOCK if fields["quant_method"] == "mxfp8" else None)
        if block is not None and not (
            isinstance(block, list) and len(block) == 2 and all(type(each) is int and each > 0 for each in block)
        ):
            raise fields.refusal("weight_block_size", f"is {block}; must be two positive numbers")
        self._block: tuple[int, int] | None = None if block is None else (block[0], block[1])
        """Outputs and inputs per scale; None if a weight has a single one."""
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> FloatWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name = self._files, f"{layer}.weight"
        if files.dtype(name) != FLOAT8:
            return None
        if self._static:
            of_inputs = "input_scale" if f"{layer}.input_scale" in files else "activation_scale"
            pass_over_input_scales(files, layer, (of_inputs,), required=True)
        scales = f"{name}_scale" if f"{name}_scale" in files else f"{name}_scale_inv"
        return float8(files, name, scales, outputs, inputs, self._block)
