"""The format of transformers' "bitnet": a weight's numbers are -1, 0 or 1, four in a byte, with a single scale."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.float8 import SINGLE
from draftwire_core.engine.checkpoint.quantised.stored_format import checked_group, checked_scales
from draftwire_core.engine.checkpoint.quantised.stored_weight import IntegerRows, IntegerWeight
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_KNOWN = frozenset(["quant_method", "linear_class", "quantization_mode", "modules_to_not_convert", "rms_norm_eps"])
_PER_BYTE = 4
_MULTIPLIED = "autobitlinear"
"""The class of layers that multiply by the scale; others divide by it."""


class BitNet:
    """A checkpoint with quantisation method "bitnet"."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        fields.one_of("quantization_mode", (None, "offline"))
        self._multiplied = fields.one_of("linear_class", (None, "bitlinear", _MULTIPLIED)) == _MULTIPLIED
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> IntegerWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name, scale_name = self._files, f"{layer}.weight", f"{layer}.weight_scale"
        if files.dtype(name) != torch.uint8 and scale_name not in files:
            return None
        if outputs % _PER_BYTE:
            raise files.refusal(name, f"has {outputs} outputs, which are not a multiple of {_PER_BYTE}")
        numbers = files.tensor(name, [(outputs // _PER_BYTE, inputs)], [torch.uint8])
        scale = checked_scales(files, scale_name, SINGLE)
        single = scale.float().reshape(1, 1)
        if not self._multiplied:
            if not scale.all():
                raise files.refusal(scale_name, "is 0, and outputs are divided by it")
            single = 1 / single
        group = checked_group(files, name, inputs, inputs)
        # The scale is one of the tensors as it is used, since the two classes of layers are different models.
        return _Ternary(outputs, inputs, 4, group, {"weight": numbers, "weight_scale": single})


@dataclass(frozen=True, slots=True, eq=False)
class _Ternary(IntegerWeight):
    """Numbers of two bits, of which 1 stands for 0. The lowest bits of all bytes are the first outputs, and so on."""

    def rows(self, first: int, last: int) -> IntegerRows:
        stored = self.tensors["weight"]
        outputs = torch.arange(first, last)
        shifts = (outputs // len(stored) * 2).to(torch.uint8)
        scales = self.tensors["weight_scale"].expand(last - first, 1)
        return IntegerRows(
            stored[outputs % len(stored)] >> shifts[:, None] & 3, scales, torch.ones_like(scales, dtype=torch.uint8)
        )
