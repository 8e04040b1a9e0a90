"""Recognises the format of a quantised checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from draftwire_core.engine.checkpoint.quantised.awq import Awq
from draftwire_core.engine.checkpoint.quantised.compressed_tensors import CompressedTensors
from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.fine_grained_fp8 import FineGrainedFp8
from draftwire_core.engine.checkpoint.quantised.gptq import Gptq
from draftwire_core.engine.checkpoint.quantised.mxfp4 import Mxfp4
from draftwire_core.engine.checkpoint.quantised.stored_format import StoredFormat
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_FORMATS: Mapping[str, Callable[[Fields, TensorFiles], StoredFormat]] = {
    "awq": Awq,
    "compressed-tensors": CompressedTensors,
    "fp8": FineGrainedFp8,
    "gptq": Gptq,
    "mxfp4": Mxfp4,
}
"""The formats by their `quant_method`."""


def read_format(configuration: object, files: TensorFiles) -> StoredFormat:
    """Returns the format that a checkpoint's quantization_config describes.

    Raises ModelLoadError, which names the field, for one that is not supported.
    """
    fields = Fields(configuration, files)
    return _FORMATS[fields.one_of("quant_method", tuple(_FORMATS))](fields, files)
