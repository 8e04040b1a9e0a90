"""The formats of bitsandbytes: numbers of 4 bits from a table (NF4, FP4), and integers of 8 bits (LLM.int8)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.stored_format import BLOCK, checked_group, checked_scales
from draftwire_core.engine.checkpoint.quantised.stored_weight import ConvertedWeight, Int8Rows, StoredWeight
from draftwire_core.engine.checkpoint.tensor_files import FLOATS, TensorFiles

_KINDS = ("nf4", "fp4")
_STATE = "weight.quant_state.bitsandbytes__"
_KNOWN = frozenset(["quant_method", "load_in_4bit", "load_in_8bit", "_load_in_4bit", "_load_in_8bit"])
_KNOWN |= {"llm_int8_skip_modules", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant"}  # the tensors show it
# How other engines are to compute with the weights:
_KNOWN |= {"bnb_4bit_compute_dtype", "bnb_4bit_quant_storage", "llm_int8_threshold"}
_KNOWN |= {"llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight"}
_MOST_OF_INT8 = 127
_BY_ROWS = 0
"""The `weight_format` of integers that lie output by output."""
_STORAGES = [torch.uint8, *FLOATS]
"""Types of tensors whose bytes are numbers of 4 bits."""


class BitsAndBytes:
    """A checkpoint of bitsandbytes."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        four, eight = (bool(fields[name] or fields[f"_{name}"]) for name in ("load_in_4bit", "load_in_8bit"))
        if four == eight:
            raise fields.refusal("load_in_4bit", f"is {four}, and load_in_8bit is {eight}; one of them must be true")
        self._is_int8 = eight
        self._usual_kind = fields.one_of("bnb_4bit_quant_type", (None, *_KINDS)) or _KINDS[0]
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> StoredWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        if self._is_int8:
            return self._int8(layer, outputs, inputs)
        files = self._files
        kind = next((kind for kind in _KINDS if f"{layer}.{_STATE}{kind}" in files), None)
        if kind is None:
            if f"{layer}.weight.absmax" in files or files.dtype(f"{layer}.weight") == torch.uint8:
                raise files.refusal(f"{layer}.{_STATE}{self._usual_kind}", "is missing")
            return None
        return _numbers(files, layer, kind, outputs, inputs)

    def _int8(self, layer: str, outputs: int, inputs: int) -> Int8Rows | None:
        files, name, scales = self._files, f"{layer}.weight", f"{layer}.SCB"
        if scales not in files and files.dtype(name) != torch.int8:
            return None
        integers = files.tensor(name, [(outputs, inputs)], [torch.int8])
        most = checked_scales(files, scales, [(outputs,), (outputs, 1)]).float().flatten()
        order = f"{layer}.weight_format"
        if order in files and (found := files.tensor(order, [(), (1,)], [torch.uint8])).item() != _BY_ROWS:
            raise files.refusal(order, f"is {found.item()}; only {_BY_ROWS}, integers output by output, is supported")
        group = checked_group(files, name, inputs, inputs)
        return Int8Rows(outputs, inputs, 8, group, {"weight": integers, "SCB": most}, most / _MOST_OF_INT8)


@dataclass(frozen=True, slots=True, eq=False)
class _TableNumbers(ConvertedWeight):
    """Numbers of 4 bits, two neighbouring inputs in a byte, the first in the high bits, in blocks that need not end
    with an output."""

    packed: torch.Tensor
    """uint8 [outputs * inputs / 2]"""
    table: torch.Tensor
    """float32 [16]: the numbers by their bits."""
    scales: torch.Tensor
    """float32 [blocks]"""
    block: int
    """Numbers per scale."""

    def rows(self, first: int, last: int) -> torch.Tensor:
        begin, end = first * self.inputs, last * self.inputs
        given = self.packed[begin // 2 : end // 2]
        numbers = self.table[torch.stack([given >> 4, given & 15], -1).flatten().int()]
        places = torch.arange(begin, end) // self.block
        return (numbers * self.scales[places]).view(-1, self.inputs)


def _numbers(files: TensorFiles, layer: str, kind: str, outputs: int, inputs: int) -> _TableNumbers:
    name, state_name = f"{layer}.weight", f"{layer}.{_STATE}{kind}"
    state = _state(files, state_name)
    count, block = outputs * inputs, _size(files, state_name, state, "blocksize")
    if state.get("shape") != [outputs, inputs]:
        raise files.refusal(state_name, f"has the shape {state.get('shape')}, not {[outputs, inputs]}")
    if inputs % BLOCK:
        raise files.refusal(name, f"has {inputs} inputs, which are not a multiple of {BLOCK}")
    stored = files.tensor(name, None, _STORAGES)
    packed = stored.reshape(-1).view(torch.uint8)
    if prod(stored.shape) * stored.dtype.itemsize != count // 2 or stored.dim() > 2 or 1 not in stored.shape:
        raise files.refusal(name, f"has shape {list(stored.shape)}, not [{count // 2}, 1]")
    table = checked_scales(files, f"{name}.quant_map", [(16,)], [torch.float32])
    scales = _scales(files, name, state_name, state, -(-count // block))
    return _TableNumbers(outputs, inputs, kind, {"weight": stored}, packed, table, scales, block)


def _scales(files: TensorFiles, name: str, state_name: str, state: Mapping[str, Any], blocks: int) -> torch.Tensor:
    """The scales of a weight's blocks, float32 [blocks]. They may be quantised in turn, in blocks of their own."""
    own, nested = f"{name}.absmax", f"{name}.nested_absmax"
    if nested not in files and "nested_blocksize" not in state:
        return checked_scales(files, own, [(blocks,)], [torch.float32])
    size = _size(files, state_name, state, "nested_blocksize")
    offset = state.get("nested_offset")
    if not isinstance(offset, float | int) or not torch.tensor(float(offset)).isfinite():
        raise files.refusal(state_name, f"has the nested_offset {offset}, which is no finite number")
    codes = files.tensor(own, [(blocks,)], [torch.uint8])
    table = checked_scales(files, f"{name}.nested_quant_map", [(256,)], [torch.float32])
    wholes = checked_scales(files, nested, [(-(-blocks // size),)], [torch.float32])
    return table[codes.int()] * wholes[torch.arange(blocks) // size] + offset


def _state(files: TensorFiles, name: str) -> Mapping[str, Any]:
    """The description of a weight that a tensor holds in JSON. Raises ModelLoadError."""
    stored = files.tensor(name, None, [torch.uint8])
    if stored.dim() != 1:
        raise files.refusal(name, f"has shape {list(stored.shape)}, not one dimension")
    try:
        found = json.loads(bytes(stored.tolist()))
    except (ValueError, RecursionError) as error:
        raise files.refusal(name, f"cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise files.refusal(name, "is not an object of JSON")
    return found


def _size(files: TensorFiles, name: str, state: Mapping[str, Any], field: str) -> int:
    found = state.get(field)
    if type(found) is not int or found < 2 or found % 2:
        raise files.refusal(name, f"has the {field} {found}; must be a positive even number")
    return found
