"""The formats of torchao in safetensors files: tensors of a weight by names of their own, and what they are in the
file's header."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.float8 import float8
from draftwire_core.engine.checkpoint.quantised.stored_format import (
    BLOCK,
    checked_group,
    checked_scales,
    pass_over_input_scales,
)
from draftwire_core.engine.checkpoint.quantised.stored_weight import (
    ConvertedWeight,
    IntegerRows,
    IntegerWeight,
    StoredWeight,
    unpacked_bytes,
)
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_PLAIN, _INT4 = "Tensor", "Int4Tensor"
_PARTS = {
    "Int8Tensor": ("qdata", "scale", "zero_point"),
    "IntxUnpackedToInt8Tensor": ("qdata", "scale", "zero_point"),
    "Float8Tensor": ("qdata", "scale"),
    _INT4: ("qdata", "scale", "zero_point"),
}
"""The tensors of a weight, by the name of its type."""
_OF_INPUTS = ("act_quant_scale", "act_quant_zero_point")
"""Tensors by which inputs would be quantised."""
_MIDDLE, _MIDDLE_OF_4 = 128, 8


class TorchAo:
    """A checkpoint of torchao."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """The header of the files says all that is needed of the layers."""
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> StoredWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name, begin = self._files, f"{layer}.weight", f"{layer}._weight_"
        about = self._about(name)
        kind = about.get("_type")
        if kind == _PLAIN or (kind is None and f"{begin}qdata" not in files):
            return None
        if not isinstance(kind, str) or kind not in _PARTS:
            known = ", ".join(_PARTS)
            raise files.refusal(name, f"is a {kind} by the file's header; supported are {known}")
        data = about.get("_data")
        block = data.get("block_size") if isinstance(data, Mapping) else None
        if not isinstance(block, list) or len(block) != 2 or not all(type(each) is int and each > 0 for each in block):
            raise files.refusal(name, f"has the block_size {block} in the file's header; must be two positive numbers")
        parts = about.get("_tensor_data_names") or []
        if not isinstance(parts, list):
            raise files.refusal(name, f"has the _tensor_data_names {parts} in the file's header; must be a list")
        for own in parts:
            if own not in (*_PARTS[kind], *_OF_INPUTS):
                raise files.refusal(f"{begin}{own}", f"is not supported for a {kind}")
        pass_over_input_scales(files, layer, [f"_weight_{own}" for own in _OF_INPUTS], required=False)
        qdata, scale = f"{begin}qdata", f"{begin}scale"
        rows, group = min(block[0], outputs), min(block[1], inputs)
        if kind == _INT4:
            return self._int4(layer, outputs, inputs, group)
        if kind == "Float8Tensor":
            return float8(files, qdata, scale, outputs, inputs, (rows, group))
        across = -(-outputs // rows), -(-inputs // group)
        group = checked_group(files, qdata, inputs, group)
        shapes = [across, (across[0],)] if across[1] == 1 else [across]
        found = {
            "weight": files.tensor(qdata, [(outputs, inputs)], [torch.int8]),
            "scale": checked_scales(files, scale, shapes),
        }
        zeros = f"{begin}zero_point"
        if zeros in files or "zero_point" in parts:
            found["zero_point"] = files.tensor(zeros, shapes, [torch.int8])
        return _Integers(outputs, inputs, 8, group, found, rows)

    def _int4(self, layer: str, outputs: int, inputs: int, group: int) -> ConvertedWeight:
        files, begin = self._files, f"{layer}._weight_"
        if inputs % group or inputs % BLOCK:
            why = f"has {inputs} inputs in groups of {group}; groups must be whole, and inputs a multiple of {BLOCK}"
            raise files.refusal(f"{begin}qdata", why)
        found = {"qdata": files.tensor(f"{begin}qdata", [(outputs, inputs // 2)], [torch.int8, torch.uint8])}
        for own in ("scale", "zero_point"):
            found[own] = checked_scales(files, f"{begin}{own}", [(inputs // group, outputs)])
        return _Int4(outputs, inputs, "int4 with fractional zero points", found)

    def _about(self, name: str) -> Mapping[str, Any]:
        """The description of a tensor in the header; empty if it does not name it. Raises ModelLoadError."""
        noted = self._files.note(name)
        try:
            found = {} if noted is None else json.loads(noted)
        except (ValueError, RecursionError) as error:
            raise self._files.refusal(name, f"cannot be read from the file's header: {error}") from error
        if not isinstance(found, dict):
            raise self._files.refusal(name, "is not an object of JSON in the file's header")
        return found


@dataclass(frozen=True, slots=True, eq=False)
class _Integers(IntegerWeight):
    """Signed integers of 8 bits, with a scale for each block of outputs and inputs, and perhaps a zero point."""

    block_outputs: int

    def rows(self, first: int, last: int) -> IntegerRows:
        blocks = torch.arange(first, last) // self.block_outputs
        scales = self.tensors["scale"].float().reshape(-1, self.groups)[blocks]
        zeros = self.tensors.get("zero_point")
        return IntegerRows(
            self.tensors["weight"][first:last].view(torch.uint8) ^ _MIDDLE,
            scales,
            torch.full_like(scales, _MIDDLE, dtype=torch.uint8)
            if zeros is None
            else (zeros.reshape(-1, self.groups)[blocks]).view(torch.uint8) ^ _MIDDLE,
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Int4(ConvertedWeight):
    """Signed integers of 4 bits, times a scale, plus a zero point that need not be a multiple of the scale."""

    def rows(self, first: int, last: int) -> torch.Tensor:
        unsigned = unpacked_bytes(self.tensors["qdata"][first:last].view(torch.uint8)) ^ _MIDDLE_OF_4
        scales, zeros = (self.tensors[own][:, first:last].t().float() for own in ("scale", "zero_point"))
        integers = unsigned.float().unflatten(1, (scales.shape[1], -1)) - _MIDDLE_OF_4
        return (integers * scales[..., None] + zeros[..., None]).flatten(1)
