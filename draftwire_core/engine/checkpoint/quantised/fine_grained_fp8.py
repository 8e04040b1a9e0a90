"""The format of transformers' "fp8", as checkpoints of DeepSeek, Qwen and Mistral have it: 8-bit floats (e4m3) with a
scale for each block of outputs and inputs, or a single one. AutoFP8 wrote the same under other names."""

from __future__ import annotations

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.float8 import FLOAT8, float8
from draftwire_core.engine.checkpoint.quantised.stored_format import KV_SCALES, pass_over_input_scales
from draftwire_core.engine.checkpoint.quantised.stored_weight import FloatWeight
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_KNOWN = frozenset(["quant_method", "activation_scheme", "weight_block_size", "fmt", "scale_fmt", "kv_cache_scheme"])
_KNOWN |= {"modules_to_not_convert", "ignored_layers"}  # the tensors show it
_STATIC = "static"
_MXFP8_BLOCK = [1, 32]
"""Outputs and inputs per scale, a power of two, of the method "mxfp8"."""


class FineGrainedFp8:
    """A checkpoint with quantisation method "fp8" or "mxfp8"."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        self._static = fields.one_of("activation_scheme", (None, "dynamic", _STATIC)) == _STATIC
        fields.one_of("fmt", (None, "e4m3", "float8_e4m3fn"))
        fields.one_of("scale_fmt", (None, "float", "ue8m0"))
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
