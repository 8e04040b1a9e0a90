"""The formats of NVIDIA's ModelOpt: 8-bit floats (e4m3), and NVFP4."""

from __future__ import annotations

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.float4 import GROUP, nvfp4
from draftwire_core.engine.checkpoint.quantised.float8 import FLOAT8, SINGLE, float8
from draftwire_core.engine.checkpoint.quantised.stored_format import KV_SCALES, pass_over_input_scales
from draftwire_core.engine.checkpoint.quantised.stored_weight import StoredWeight
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_NVFP4, _MIXED = ("NVFP4", "W4A16_NVFP4"), "MIXED_PRECISION"
_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "MXFP8", *_NVFP4)
_KNOWN = frozenset(["quant_method", "quant_algo", "group_size", "producer", "kv_cache_quant_algo", "kv_cache_scheme"])
_KNOWN |= {"exclude_modules", "ignore", "config_groups", "quantized_layers"}  # the tensors show it
_BLOCK = 128
"""Outputs, and inputs, per scale of FP8_PB_WO."""
_POWER_OF = 32
"""Inputs per scale of MXFP8."""


class ModelOpt:
    """A checkpoint of ModelOpt. Its tensors show which layers are quantised, and how."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        if fields["quantization"]:  # as in a file of its own
            fields = fields.part("quantization")
        fields.nothing_but(_KNOWN)
        # None if only the cache is to have few bits.
        algorithm = fields.one_of("quant_algo", (None, *_ALGORITHMS, _MIXED))
        if algorithm == _MIXED:
            layers = fields.part("quantized_layers")
            for name in layers.names():
                layers.part(name).one_of("quant_algo", _ALGORITHMS)
        elif algorithm in _NVFP4:
            fields.one_of("group_size", (None, GROUP))
        if fields["kv_cache_quant_algo"] or fields["kv_cache_scheme"]:
            files.pass_over(KV_SCALES)
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> StoredWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name, scales, whole = self._files, f"{layer}.weight", f"{layer}.weight_scale", "weight_scale_2"
        if scales not in files and f"{layer}.{whole}" not in files and files.dtype(name) != FLOAT8:
            return None
        pass_over_input_scales(files, layer, ("input_scale",), required=False)
        if files.dtype(name) != FLOAT8:
            return nvfp4(files, layer, outputs, inputs, packed="weight", whole=whole, divides=False)
        return float8(files, name, scales, outputs, inputs, self._block(scales, inputs))

    def _block(self, scales: str, inputs: int) -> tuple[int, int] | None:
        """Outputs and inputs per scale, by the tensor of scales; None for a single scale."""
        shape = self._files.shape(scales)
        if shape is None or shape in SINGLE:
            return None
        if self._files.dtype(scales) == torch.uint8:
            return 1, _POWER_OF
        return (_BLOCK, _BLOCK) if len(shape) == 4 else (1, inputs)
