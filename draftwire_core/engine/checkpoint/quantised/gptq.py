"""The formats of AutoGPTQ and GPTQModel: integers of 4 or 8 bits, with zero points."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import torch

from draftwire_core.engine.checkpoint.quantised.awq import inputs_per_group
from draftwire_core.engine.checkpoint.quantised.fields import OF_TOOLS, Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import checked_group, checked_scales, input_order
from draftwire_core.engine.checkpoint.quantised.stored_weight import IntegerRows, IntegerWeight, unpacked
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_OFFSETS = {"gptq": 1, "gptq_v2": 0}
"""The number that is added to a stored zero point, by the name of the format; the sum wraps around."""
_KNOWN = OF_TOOLS | {"quant_method", "bits", "group_size", "checkpoint_format", "format", "desc_act", "lm_head"}
_KNOWN |= {"data_type", "dynamic", "pack_dtype"}
_EXCLUDED, _INCLUDED = "-:", "+:"
"""Beginnings of patterns of layers that are not quantised, and of those that have fields of their own."""


class _Packing(NamedTuple):
    """How the weight of a layer is packed."""

    bits: int
    group: int | None
    """Inputs per group; None for one group."""
    reordered: bool
    """Whether each input's group is stored."""


class Gptq:
    """A checkpoint of AutoGPTQ or GPTQModel."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        bits, group = fields.one_of("bits", (4, 8)), inputs_per_group(fields, "group_size")
        self._usual = _Packing(bits, group, bool(fields["desc_act"]))
        self._others = _others(fields.part("dynamic"), self._usual) if fields["dynamic"] else []
        fields.one_of("data_type", (None, "int"))
        name = "format" if fields["checkpoint_format"] is None else "checkpoint_format"
        self._offset = torch.tensor(_OFFSETS[fields.one_of(name, (None, *_OFFSETS)) or "gptq"], dtype=torch.uint8)
        fields.one_of("pack_dtype", (None, "int32"))
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> IntegerWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        files, name = self._files, f"{layer}.qweight"
        if name not in files and f"{layer}.scales" not in files:
            return None
        bits, group, reordered = next((own for pattern, own in self._others if pattern.match(layer)), self._usual)
        if outputs * bits % 32:
            raise files.refusal(name, f"has {outputs} outputs, which do not fill whole words")
        group = checked_group(files, name, inputs, group or inputs)
        groups = inputs // group
        found = {
            "qweight": files.tensor(name, [(inputs * bits // 32, outputs)], [torch.int32]),
            "qzeros": files.tensor(f"{layer}.qzeros", [(groups, outputs * bits // 32)], [torch.int32]),
            "scales": checked_scales(files, f"{layer}.scales", [(groups, outputs)]),
            "zero_offset": self._offset,  # one of the tensors, since it makes two models different
        }
        found |= input_order(files, f"{layer}.g_idx", inputs, group, required=reordered)
        return _GptqIntegers(outputs, inputs, bits, group, found)


def _others(patterns: Fields, usual: _Packing) -> list[tuple[re.Pattern[str], _Packing]]:
    """Reads the patterns of layers that are packed in another way, the first of which counts. Raises ModelLoadError."""
    found = []
    for name in patterns.names():
        if name.startswith(_EXCLUDED):  # such layers have tensors that are not quantised
            continue
        own = patterns.part(name)
        own.nothing_but(OF_TOOLS | {"bits", "group_size", "desc_act"})
        try:
            pattern = re.compile(name.removeprefix(_INCLUDED))
        except re.error as error:
            raise patterns.refusal(name, f"is a pattern that cannot be read: {error}") from error
        bits = own.one_of("bits", (None, 4, 8)) or usual.bits
        group = usual.group if own["group_size"] is None else inputs_per_group(own, "group_size")
        reordered = usual.reordered if own["desc_act"] is None else bool(own["desc_act"])
        found.append((pattern, _Packing(bits, group, reordered)))
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _GptqIntegers(IntegerWeight):
    """Integers with the words of an output in a column, and zero points with those of a group in a row."""

    def rows(self, first: int, last: int) -> IntegerRows:
        zeros = unpacked(self.tensors["qzeros"], self.bits)[:, first:last].t()
        return IntegerRows(
            unpacked(self.tensors["qweight"][:, first:last].t(), self.bits),
            self.tensors["scales"][:, first:last].t().float(),
            (zeros + self.tensors["zero_offset"]) & ((1 << self.bits) - 1),
        )
