"""Recognises the format of a quantised checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftwire_core.engine.checkpoint.quantised.auto_round import auto_round
from draftwire_core.engine.checkpoint.quantised.awq import Awq
from draftwire_core.engine.checkpoint.quantised.bitnet import BitNet
from draftwire_core.engine.checkpoint.quantised.bitsandbytes import BitsAndBytes
from draftwire_core.engine.checkpoint.quantised.compressed_tensors import CompressedTensors
from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.float4 import Mxfp4
from draftwire_core.engine.checkpoint.quantised.float8 import FbgemmFp8, FineGrainedFp8
from draftwire_core.engine.checkpoint.quantised.gptq import Gptq
from draftwire_core.engine.checkpoint.quantised.modelopt import ModelOpt
from draftwire_core.engine.checkpoint.quantised.quanto import Quanto
from draftwire_core.engine.checkpoint.quantised.stored_format import StoredFormat
from draftwire_core.engine.checkpoint.quantised.torchao import TorchAo
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_METHOD = "quant_method"
_FORMATS: Mapping[str, Callable[[Fields, TensorFiles], StoredFormat]] = {
    "auto-round": auto_round,
    "awq": Awq,
    "bitnet": BitNet,
    "bitsandbytes": BitsAndBytes,
    "compressed-tensors": CompressedTensors,
    "fbgemm_fp8": FbgemmFp8,
    "fp8": FineGrainedFp8,
    "gptq": Gptq,
    "modelopt": ModelOpt,
    "modelopt_fp4": ModelOpt,
    "modelopt_mixed": ModelOpt,
    "modelopt_mxfp8": ModelOpt,
    "mxfp4": Mxfp4,
    "mxfp8": FineGrainedFp8,
    "quanto": Quanto,
    "torchao": TorchAo,
}
"""The formats by their `quant_method`."""
_OF_BITSANDBYTES = ("load_in_4bit", "load_in_8bit")
"""Fields that name the method in files without `quant_method`."""


def read_format(configuration: object, files: TensorFiles) -> StoredFormat:
    """Returns the format that a checkpoint's quantization_config describes.

    Raises ModelLoadError, which names the field, for one that is not supported.
    """
    fields = Fields(configuration, files)
    method = fields[_METHOD]
    if method is None and any(fields[name] for name in _OF_BITSANDBYTES):
        method = "bitsandbytes"
    if not isinstance(method, str) or method not in _FORMATS:
        raise fields.refusal(
            _METHOD,
            f"is {method!r}, which is not supported; supported are {', '.join(_FORMATS)}. "
            "Serve the unquantised checkpoint (--weights quantises it at load), one in such a format, or a GGUF file",
        )
    return _FORMATS[method](fields, files)
