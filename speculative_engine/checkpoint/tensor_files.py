"""The tensors of a checkpoint's safetensors files, mapped into memory."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from speculative_engine.checkpoint.checkpoint import Checkpoint, ModelLoadError

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Types of tensors that are not quantised, and of scales."""


class TensorFiles:
    """The tensors of a checkpoint by name. Tensors are views of the mapped files, which must not be written to."""

    def __init__(self, name: str, files: Mapping[str, Any]):
        """Opened by `open`. name: of the model, for messages. files: the open file of each tensor."""
        self._name = name
        self._files = files
        self._unread = set(files)

    @classmethod
    def open(cls, checkpoint: Checkpoint) -> TensorFiles:
        """Opens the files and reads their headers. Raises ModelLoadError for files that are missing or damaged."""
        name, directory = checkpoint.name, checkpoint.directory
        if not (directory / _INDEX).is_file():
            single = _open(name, directory / _SINGLE)
            return cls(name, dict.fromkeys(single.keys(), single))
        named = _weight_map(name, directory / _INDEX)
        opened = {file: _open(name, directory / file) for file in sorted(set(named.values()))}
        held = {file: frozenset(each.keys()) for file, each in opened.items()}
        for tensor, file in named.items():
            if tensor not in held[file]:
                raise ModelLoadError(f"model {name}: tensor {tensor} is not in {file}, where {_INDEX} says it is")
        return cls(name, {tensor: opened[file] for tensor, file in named.items()})

    def __contains__(self, name: str) -> bool:
        return name in self._files

    @property
    def unread(self) -> Collection[str]:
        """The names of the tensors that nobody has asked for."""
        return self._unread

    def refusal(self, tensor: str, why: str) -> ModelLoadError:
        """An error that names a tensor."""
        return ModelLoadError(f"model {self._name}: tensor {tensor} {why}")

    def field_refusal(self, field: str, why: str) -> ModelLoadError:
        """An error that names a field of the quantisation's configuration."""
        return ModelLoadError(f"model {self._name}: quantization_config.{field} {why}")

    def tensor(self, name: str, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[torch.dtype]) -> torch.Tensor:
        """A tensor. Raises ModelLoadError, which names it, if it is missing or has none of the shapes or types."""
        file = self._files.get(name)
        if file is None:
            raise self.refusal(name, "is missing")
        self._unread.discard(name)
        try:
            found: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, RuntimeError, ValueError) as error:
            raise self.refusal(name, f"cannot be read: {error}") from error
        if tuple(found.shape) not in shapes:
            expected = " or ".join(str(list(shape)) for shape in shapes)
            raise self.refusal(name, f"has shape {list(found.shape)}, not {expected}")
        if found.dtype not in dtypes:
            expected = " or ".join(_type_name(dtype) for dtype in dtypes)
            raise self.refusal(name, f"has type {_type_name(found.dtype)}, not {expected}")
        return found

    def dtype(self, name: str) -> torch.dtype | None:
        """The type of a tensor; None if there is no such tensor."""
        file = self._files.get(name)
        if file is None:
            return None
        found: torch.dtype = file.get_tensor(name).dtype  # which reads nothing, since it is mapped
        return found


def _weight_map(name: str, index: Path) -> dict[str, str]:
    """The file of each tensor. Raises ModelLoadError."""
    try:
        found = json.loads(index.read_text())["weight_map"]
        files = {str(tensor): str(file) for tensor, file in found.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"model {name}: {_INDEX} cannot be read: {error}") from error
    strange = next((file for file in files.values() if Path(file).name != file), None)
    if strange is not None:
        raise ModelLoadError(f"model {name}: {_INDEX} names {strange}, which is not a file beside it")
    return files


def _open(name: str, path: Path) -> Any:
    try:
        if not path.is_file():  # opening a pipe would wait for whoever writes to it
            raise ModelLoadError(f"model {name}: there is no {path.name}")
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"model {name}: {path.name} is damaged: {_cut_off(path) or error}") from error


def _cut_off(path: Path) -> str | None:
    """Says which tensor of a damaged file lies beyond its end; None if the damage is another."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size - 8 - header_bytes
            header = json.loads(file.read(header_bytes)) if size >= 0 else {}
            ends = {tensor: about["data_offsets"][1] for tensor, about in header.items() if tensor != "__metadata__"}
            tensor = next((tensor for tensor, end in ends.items() if end > size), None)
    except (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError):
        return None  # the header itself is damaged
    return None if tensor is None else f"it ends before tensor {tensor} does"


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
