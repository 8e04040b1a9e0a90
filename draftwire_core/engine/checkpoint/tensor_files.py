"""The tensors of a checkpoint's safetensors files, mapped into memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from safetensors import SafetensorError

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError
from draftwire_core.engine.checkpoint.load_errors import load_errors, stop_if_abandoned
from draftwire_core.engine.checkpoint.weight_files import INDEX, SINGLE, open_safetensors, weight_map

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
        if (directory / SINGLE).is_file() or not (directory / INDEX).is_file():
            with load_errors(f"model {name}"):
                single = open_safetensors(directory / SINGLE)
            return cls(name, dict.fromkeys(single.keys(), single))
        named = weight_map(checkpoint)
        with load_errors(f"model {name}"):
            opened = {file: open_safetensors(directory / file) for file in sorted(set(named.values()))}
        held = {file: frozenset(each.keys()) for file, each in opened.items()}
        for tensor, file in named.items():
            if tensor not in held[file]:
                raise ModelLoadError(f"model {name}: tensor {tensor} is not in {file}, where {INDEX} says it is")
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
        stop_if_abandoned()
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


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
