"""The formats of compressed-tensors, which llm-compressor writes and vLLM reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from draftwire_core.engine.checkpoint.quantised.fields import Fields
from draftwire_core.engine.checkpoint.quantised.float4 import mxfp4_numbers, nvfp4
from draftwire_core.engine.checkpoint.quantised.float8 import float8
from draftwire_core.engine.checkpoint.quantised.stored_format import (
    KV_SCALES,
    checked_group,
    checked_scales,
    input_order,
    pass_over_input_scales,
)
from draftwire_core.engine.checkpoint.quantised.stored_weight import (
    IntegerRows,
    IntegerWeight,
    StoredWeight,
    unpacked,
)
from draftwire_core.engine.checkpoint.tensor_files import TensorFiles

_NVFP4, _MXFP4, _MXFP8 = "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"


class _Kind(NamedTuple):
    """The forms that weights of a type have."""

    bits: tuple[int, ...]
    strategies: tuple[str, ...]
    group: int | None = None
    """Inputs per scale, if there is only one such number."""


_INTEGERS, _FLOATS = _Kind((4, 8), ("tensor", "channel", "group")), _Kind((8,), ("tensor", "channel", "block"))
_FORMATS: Mapping[str, Mapping[str, _Kind]] = {
    "pack-quantized": {"int": _INTEGERS},
    "int-quantized": {"int": _INTEGERS},
    "naive-quantized": {"int": _INTEGERS, "float": _FLOATS},
    "float-quantized": {"float": _FLOATS},
    _NVFP4: {"float": _Kind((4,), ("tensor_group",), 16)},
    _MXFP4: {"float": _Kind((4,), ("group",), 32)},
    _MXFP8: {"float": _Kind((8,), ("group",), 32)},
}
"""The types of weights by format."""
_MIXED = "mixed-precision"
"""The format of a checkpoint whose groups have formats of their own."""
_KNOWN = frozenset(["config_groups", "quant_method", "format", "quantization_status", "global_compression_ratio"])
_KNOWN |= {"ignore", "version", "sparsity_config", "run_compressed", "kv_cache_scheme", "provider"}
_KNOWN_OF_WEIGHTS = frozenset(
    ["num_bits", "type", "symmetric", "group_size", "strategy", "block_structure", "actorder"]
)
_KNOWN_OF_WEIGHTS |= {"observer", "observer_kwargs", "scale_dtype", "zp_dtype"}  # how the weight was quantised
_IN_ORDER, _REORDERED = ("weight", "static"), ("group", "dynamic")
"""Orders in which inputs were quantised: those that leave the groups as they are, and those that do not."""
_LOCAL = "local"
"""How inputs are quantised that have a scale of their own next to one of the checkpoint's."""
_SCALES_OF_INPUTS, _GLOBAL_OF_INPUTS = ("input_scale", "input_zero_point"), ("input_global_scale",)
_PATTERN = "re:"
_PLACE = re.compile(r"^(model\.|language_model\.)+")
"""The first parts of a layer's name, which transformers has changed over time: a configuration has those of the model
in memory, and the files may have those that it is stored with."""


@dataclass(frozen=True, slots=True)
class _Scheme:
    """The storage of a group of layers."""

    targets: tuple[str, ...]
    format: str
    bits: int
    is_float: bool
    symmetric: bool
    strategy: str
    group: int
    """Inputs per scale, of the strategies "group" and "block"."""
    block_outputs: int
    """Outputs per scale, of the strategy "block"."""
    reordered: bool
    """Whether each input's group is stored."""
    input_scales: tuple[str, ...]
    """Names of the tensors that scale a layer's inputs."""
    static: bool
    """Whether the first of them must be there."""


class CompressedTensors:
    """A checkpoint of compressed-tensors."""

    def __init__(self, fields: Fields, files: TensorFiles):
        """Raises ModelLoadError for a configuration that is not supported."""
        fields.nothing_but(_KNOWN)
        # The tensors show whether they are compressed. Checkpoints of 2024 that are say "frozen".
        fields.one_of("quantization_status", (None, "compressed", "frozen"))
        if fields["sparsity_config"]:
            sparsity = fields.part("sparsity_config")
            sparsity.one_of("format", (None, "dense"))
        if fields["kv_cache_scheme"]:
            files.pass_over(KV_SCALES)
        form = fields.one_of("format", (*_FORMATS, _MIXED))
        self._ignored = _targets(fields, "ignore")
        groups = fields.part("config_groups")
        self._schemes = [_scheme(groups.part(name), form) for name in groups.names()]
        self._files = files

    def weight(self, layer: str, outputs: int, inputs: int) -> StoredWeight | None:
        """The weight of a linear layer by its name; None if it is not quantised. Raises ModelLoadError."""
        scheme, files = self._scheme_of(layer), self._files
        if scheme is None:
            return None
        pass_over_input_scales(files, layer, scheme.input_scales, required=scheme.static)
        packed = "weight_packed"
        if scheme.format == _NVFP4:
            return nvfp4(files, layer, outputs, inputs, packed=packed, whole="weight_global_scale", divides=True)
        if scheme.format == _MXFP4:
            return mxfp4_numbers(files, f"{layer}.{packed}", f"{layer}.weight_scale", outputs, inputs)
        if scheme.is_float:
            block = None if scheme.strategy == "tensor" else (scheme.block_outputs, scheme.group or inputs)
            return float8(files, f"{layer}.weight", f"{layer}.weight_scale", outputs, inputs, block)
        return self._integers(scheme, layer, outputs, inputs)

    def _scheme_of(self, layer: str) -> _Scheme | None:
        """The scheme of a layer: by its name before a pattern that matches it, and that before its class."""
        if any(_matches(layer, each) for each in self._ignored):
            return None
        found = [
            (target.startswith(_PATTERN) + 2 * (target == "Linear"), index)
            for index, scheme in enumerate(self._schemes)
            for target in scheme.targets
            if _matches(layer, target)
        ]
        return self._schemes[min(found)[1]] if found else None

    def _integers(self, scheme: _Scheme, layer: str, outputs: int, inputs: int) -> IntegerWeight:
        files, packed = self._files, scheme.format == "pack-quantized"
        name = f"{layer}.weight_packed" if packed else f"{layer}.weight"
        group = checked_group(files, name, inputs, scheme.group if scheme.strategy == "group" else inputs)
        single = scheme.strategy == "tensor"
        shapes: list[tuple[int, ...]] = [(1,), ()] if single else [(outputs, inputs // group)]
        if packed:
            words = (outputs, inputs * scheme.bits // 32)
            found = {"weight_packed": files.tensor(name, [words], [torch.int32])}
            shape = files.tensor(f"{layer}.weight_shape", [(2,)], [torch.int64, torch.int32])
            if shape.tolist() != [outputs, inputs]:
                raise files.refusal(f"{layer}.weight_shape", f"is {shape.tolist()}, not {[outputs, inputs]}")
        else:
            found = {"weight": files.tensor(name, [(outputs, inputs)], [torch.int8])}
        found["weight_scale"] = checked_scales(files, f"{layer}.weight_scale", shapes)
        if not scheme.symmetric:
            zeros = f"{layer}.weight_zero_point"
            if packed and not single:
                of_words = (-(-outputs * scheme.bits // 32), inputs // group)
                found["weight_zero_point"] = files.tensor(zeros, [of_words], [torch.int32])
            else:
                found["weight_zero_point"] = files.tensor(zeros, shapes, [torch.int8])
        found |= input_order(files, f"{layer}.weight_g_idx", inputs, group, required=scheme.reordered)
        bits = scheme.bits if packed else 8
        return _CompressedIntegers(outputs, inputs, bits, group, found, packed)


@dataclass(frozen=True, slots=True, eq=False)
class _CompressedIntegers(IntegerWeight):
    """Integers whose lowest value is stored as 0 if they are packed, and as such if not."""

    packed: bool

    def rows(self, first: int, last: int) -> IntegerRows:
        lowest = 1 << (self.bits - 1)
        if self.packed:
            integers = unpacked(self.tensors["weight_packed"][first:last], self.bits)
        else:
            integers = self.tensors["weight"][first:last].view(torch.uint8) ^ lowest
        scales = self.tensors["weight_scale"].float()
        zeros = self.tensors.get("weight_zero_point")
        if zeros is None:
            zeros = torch.full((1, 1), lowest, dtype=torch.uint8)
        elif zeros.dtype == torch.int32:  # packed along outputs
            zeros = unpacked(zeros.t(), self.bits).t()[: self.outputs]
        else:
            zeros = (zeros + lowest).to(torch.uint8) if self.bits == 4 else zeros.view(torch.uint8) ^ lowest
        whole = self.outputs, self.groups
        return IntegerRows(integers, scales.expand(whole)[first:last], zeros.expand(whole)[first:last])


def _matches(layer: str, target: str) -> bool:
    if target.startswith(_PATTERN):
        return re.match(target.removeprefix(_PATTERN), layer) is not None
    return target == "Linear" or _PLACE.sub("", target) == _PLACE.sub("", layer)


def _targets(fields: Fields, name: str) -> list[str]:
    """Reads names and patterns of layers. Raises ModelLoadError."""
    found = fields.strings(name)
    for each in found:
        try:
            re.compile(each.removeprefix(_PATTERN) if each.startswith(_PATTERN) else "")
        except re.error as error:
            raise fields.refusal(name, f"has a pattern that cannot be read: {error}") from error
    return found


def _scheme(fields: Fields, form: str) -> _Scheme:
    """Reads a group of layers. Raises ModelLoadError."""
    fields.nothing_but(("targets", "weights", "input_activations", "format"))
    own = fields.one_of("format", (None, *_FORMATS))
    if own is None and form == _MIXED:
        raise fields.refusal("format", f"is missing, though the checkpoint's is {_MIXED}")
    form = own or form
    dynamic: object = True
    if fields["input_activations"]:
        activations = fields.part("input_activations")
        dynamic = activations.one_of("dynamic", (None, True, False, _LOCAL)) or False
        activations.one_of("num_bits", (None, 4, 8, 16))
    weights = fields.part("weights")
    weights.nothing_but(_KNOWN_OF_WEIGHTS)
    # Files may leave out what is usual.
    kind = weights.one_of("type", (None, "int", "float")) or "int"
    if kind not in _FORMATS[form]:
        raise weights.refusal("type", f"is {kind}, which format {form} does not have")
    may_be = _FORMATS[form][kind]
    bits = weights.one_of("num_bits", (None, *may_be.bits) if 8 in may_be.bits else may_be.bits) or 8
    strategy = weights["strategy"] or _strategy(weights["group_size"])
    if strategy not in may_be.strategies:
        raise weights.refusal("strategy", f"is {strategy}, which is not supported for type {kind}")
    if may_be.group is not None:
        weights.one_of("group_size", (may_be.group,))
    block = weights["block_structure"] if strategy == "block" else [1, 0]
    if not isinstance(block, list) or len(block) != 2 or not all(type(each) is int for each in block):
        raise weights.refusal("block_structure", f"is {block}; must be two numbers")
    if strategy == "block" and min(block) < 1:
        raise weights.refusal("block_structure", f"is {block}; must be positive")
    return _Scheme(
        targets=tuple(_targets(fields, "targets")),
        format=form,
        bits=bits,
        is_float=kind == "float",
        symmetric=weights.one_of("symmetric", (None, True) if kind == "float" else (None, True, False)) is not False,
        strategy=strategy,
        group=weights.size("group_size") if "group" in strategy else block[1],
        block_outputs=block[0],
        reordered=weights.one_of("actorder", (None, False, *_IN_ORDER, True, *_REORDERED)) in (True, *_REORDERED),
        input_scales=() if dynamic is True else _GLOBAL_OF_INPUTS if form == _NVFP4 else _SCALES_OF_INPUTS,
        static=dynamic is False,
    )


def _strategy(group_size: object) -> str:
    """The strategy where none is named."""
    return "tensor" if group_size is None else "channel" if group_size == -1 else "group"
