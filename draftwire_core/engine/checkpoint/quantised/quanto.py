"""The format of optimum-quanto: weights of 8 bits with a scale per output, in the tensors `_data` and `_scale`."""

from __future__ import annotations

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.float8 import FLOAT8, float8
from draftwire_core.engine.checkpoint.quantised.stored_format import (
    checked_group,
    checked_scales,
    pass_over_input_scales,
)
from draftwire_core.engine.checkpoint.quantised.stored_weight import Int8Rows, StoredWeight
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_WEIGHTS = ("int8", "float8", "qint8", "qfloat8", "qfloat8_e4m3fn")


class Quanto:
    """A checkpoint of optimum-quanto."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(("quant_method", "weights", "activations", "modules_to_not_convert"))
        fields.one_of("weights", _WEIGHTS)
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> StoredWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name, scales = self._files, f"{layer}.weight._data", f"{layer}.weight._scale"
        if name not in files and scales not in files:
            return None
        pass_over_input_scales(files, layer, ("input_scale", "output_scale"), required=False)
        if files.dtype(name) == FLOAT8:
            return float8(files, name, scales, outputs, inputs, (1, inputs))
        group = checked_group(files, name, inputs, inputs)
        integers = files.tensor(name, [(outputs, inputs)], [torch.int8])
        of_rows = checked_scales(files, scales, [(outputs, 1)])
        return Int8Rows(outputs, inputs, 8, group, {"weight": integers, "scale": of_rows}, of_rows.float().flatten())
