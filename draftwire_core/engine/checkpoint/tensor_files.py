"""The tensors of a checkpoint's safetensors files, mapped into memory."""

from __future__ import annotations

import re
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
        self._notes: dict[str, str] | None = None

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

    def pass_over(self, pattern: str) -> None:
        """Counts tensors as read whose names the regular expression `pattern` finds."""
        self._unread = {name for name in self._unread if not re.search(pattern, name)}

    def note(self, name: str) -> str | None:
        """The text that the files' headers have under a name, next to their tensors; None if there is none."""
        if self._notes is None:
            self._notes = {}
            for file in set(self._files.values()):
                self._notes |= file.metadata() or {}
        return self._notes.get(name)

    def tensor(
        self, name: str, shapes: Sequence[tuple[int, ...]] | None, dtypes: Sequence[torch.dtype]
    ) -> torch.Tensor:
        """A tensor. Raises ModelLoadError, which names it, if it is missing or has none of the shapes or types.

        shapes: None for any.
        """
        stop_if_abandoned()
        file = self._files.get(name)
        if file is None:
            raise self.refusal(name, "is missing")
        self._unread.discard(name)
        try:
            found: torch.Tensor = file.get_tensor(name)
        except (SafetensorError, RuntimeError, ValueError) as error:
            raise self.refusal(name, f"cannot be read: {error}") from error
        if shapes is not None and tuple(found.shape) not in shapes:
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

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor; None if there is no such tensor."""
        file = self._files.get(name)
        return None if file is None else tuple(file.get_slice(name).get_shape())


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
