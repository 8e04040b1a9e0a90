"""The tensors of a GGUF file as the parameters of a model of transformers."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache

import torch
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_architecture import GgufArchitecture
from draftwire_core.engine.checkpoint.gguf.architectures.gguf_change import SAME, GgufChange, Joined, Shape
from draftwire_core.engine.checkpoint.gguf.gguf_header import PLAIN_TYPES, GgufEntry, GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_tensor import GgufParameter, GgufTensor
from draftwire_core.engine.checkpoint.module_budget import skeleton

_LAYER = re.compile(r"\.(layers|h|blocks)\.(\d+)\.")
_ATTENTION = re.compile(r"(blk\.\d+\.attn_)([qkv])(\.\w+)")
_PARTS = "qkv"
_BLOCK = re.compile(r"blk\.(\d+)\.")
_SCALED = ("NVFP4",)
"""Types whose tensors have factors in others next to them."""


class GgufParameters:
    """Finds the tensors of a file for the parameters of its model."""

    def __init__(self, header: GgufHeader, architecture: GgufArchitecture, read: Callable[[GgufEntry], GgufTensor]):
        """read: makes the tensor of an entry."""
        self._header = header
        self._architecture = architecture
        self._read = read

    def find(self, config: PretrainedConfig, known: set[str]) -> dict[str, GgufParameter]:
        """The parameters by their names in transformers.

        config: the model's. known: tensors that are no parameters. Raises ModelLoadError, which names the file and the
        tensor, for one that is missing, of another shape, or used by nobody, as it would belong to another model.
        """
        metadata, found, used = self._header.metadata, {}, set(known)
        places = [(each, shape, *self._place(each, config)) for each, shape in _stored(self._skeleton(config))]
        rows = {names[0]: shape[0] for _, shape, names, _ in places if _ATTENTION.fullmatch(names[0])}
        for parameter, shape, names, change in places:
            if len(names) == 1:
                names, change = self._joined(names[0], change, rows)
            try:
                shapes = change.shapes(shape)
            except (RuntimeError, IndexError) as error:
                raise metadata.tensor_refusal(names[0], f"does not fit {parameter} of shape {list(shape)}") from error
            parts = []
            for name, expected in zip(names, shapes, strict=True):
                parts.append(self._scaled(self._read(self._checked(name, expected)), name, used))
                used.add(name)
            found[parameter] = GgufParameter(shape, tuple(parts), change)
        layers = int(config.num_hidden_layers)
        for name in self._header.tensors:
            drafting = _BLOCK.match(name)
            unused = self._architecture.unused and re.fullmatch(self._architecture.unused, name)
            if name not in used and not unused and not (drafting and int(drafting[1]) >= layers):
                raise metadata.tensor_refusal(name, f"is not known for architecture {self._architecture.name}")
        return found

    def _skeleton(self, config: PretrainedConfig) -> PreTrainedModel:
        """The model without weights."""
        metadata = self._header.metadata
        try:
            return skeleton(
                self._architecture.name,
                len(self._header.tensors),
                lambda: AutoModelForCausalLM.from_config(copy.deepcopy(config), dtype=torch.bfloat16),
            )
        except (ModelLoadError, *_ABSURD) as error:
            raise metadata.refusal(f"{self._architecture.name}.*", f"no model: {error}") from error

    def _place(self, parameter: str, config: PretrainedConfig) -> tuple[tuple[str, ...], GgufChange]:
        """The names in the file of the tensors of a parameter, and what was done to it."""
        layer = _LAYER.search(parameter)
        prefix = f"blk.{layer[2]}." if layer else ""
        fitting = [rule for rule in self._architecture.rules if re.search(f"{rule.parameter}$", parameter)]
        for rule in fitting:
            names = tuple(prefix + name for name in rule.names) or (self._usual_name(parameter),)
            if names[0] in self._header.tensors or rule is fitting[-1]:
                return names, rule.change(config)
        return (self._usual_name(parameter),), SAME

    def _joined(self, name: str, change: GgufChange, rows: Mapping[str, int]) -> tuple[tuple[str, ...], GgufChange]:
        """The place of a parameter whose tensor of this name may be a part of one with all queries, keys and values, as
        llama.cpp's converter writes it with --fuse-qkv. rows: of the tensors of such names."""
        part = _ATTENTION.fullmatch(name)
        whole = f"{part[1]}qkv{part[3]}" if part else ""
        if part is None or name in self._header.tensors or whole not in self._header.tensors:
            return (name,), change
        sizes = [rows.get(f"{part[1]}{each}{part[3]}", 0) for each in _PARTS]
        before = sum(sizes[: _PARTS.index(part[2])])
        return (whole,), Joined(before, sum(sizes), rows[name], change)

    def _usual_name(self, parameter: str) -> str:
        """The name of the package gguf."""
        layer, first = _LAYER.search(parameter), parameter
        if layer:
            first = f"{parameter[: layer.start(2)]}0{parameter[layer.end(2) :]}"
        ours, theirs = self._architecture.renamed
        if ours and first.startswith(ours):
            first = theirs + first.removeprefix(ours)
        names = _names(self._architecture.name)
        module, _, kind = first.rpartition(".")
        name = names.get(first) or (f"{names[module]}.{kind}" if module in names else None)
        if name is None:
            raise self._header.metadata.refusal("general.architecture", f"no tensor is known for {parameter}")
        return name.replace("blk.0.", f"blk.{layer[2]}.", 1) if layer else name

    def _scaled(self, tensor: GgufTensor, name: str, used: set[str]) -> GgufTensor:
        """A tensor with the factor that lies in another one next to it, as llama.cpp's converter writes NVFP4.

        used: gets the names of tensors next to it. Raises ModelLoadError for a factor that is damaged.
        """
        base = name.removesuffix("weight")
        entry = self._header.tensors.get(f"{base}scale")
        if tensor.type not in _SCALED or base == name:
            return tensor
        used.add(f"{base}input_scale")  # of a product of few-bit inputs
        if entry is None or any(_BLOCK.sub("", entry.name) in rule.names for rule in self._architecture.rules):
            return tensor
        used.add(entry.name)
        expected = tensor.shape[:1] if len(tensor.shape) > 2 else (1,)
        if entry.shape != expected or entry.type != "F32":
            why = f"has type {entry.type} and shape {list(entry.shape)}, not F32 and {list(expected)}"
            raise self._header.metadata.tensor_refusal(entry.name, why)
        return replace(tensor, scale=self._read(entry).dequantised())

    def _checked(self, name: str, shape: Shape) -> GgufEntry:
        metadata = self._header.metadata
        entry = self._header.tensors.get(name)
        if entry is None:
            raise metadata.tensor_refusal(name, "is missing")
        # llama.cpp's tools drop dimensions of 1 at the front.
        fewer = shape[next((at for at, size in enumerate(shape[:-1]) if size != 1), len(shape) - 1) :]
        if entry.shape not in (shape, fewer):
            raise metadata.tensor_refusal(
                name, f"has shape {list(entry.shape)}, but the metadata say {list(shape)}"
            )  # fmt: skip
        if len(shape) == 1 and entry.type not in PLAIN_TYPES:
            raise metadata.tensor_refusal(name, f"has type {entry.type}; vectors are not quantised")
        return replace(entry, shape=shape)


_ABSURD = (RuntimeError, ValueError, TypeError, KeyError, IndexError, AttributeError, ZeroDivisionError, OverflowError)
"""The errors that the code of a model raises for sizes that contradict each other."""


def _stored(model: PreTrainedModel) -> Iterator[tuple[str, Shape]]:
    """The names and shapes of the tensors that a checkpoint has of a model."""
    for name, parameter in model.named_parameters():
        yield name, tuple(parameter.shape)
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}", tuple(buffer.shape)


@cache
def _names(architecture: str) -> dict[str, str]:
    """The names in files by those of modules in transformers.

    Of the first layer only: a false number of layers must not cost memory.
    """
    number = next(number for number, name in MODEL_ARCH_NAMES.items() if name == architecture)
    found = get_tensor_name_map(MODEL_ARCH(number), 1).mapping
    return {module: name for module, (_, name) in found.items()}
