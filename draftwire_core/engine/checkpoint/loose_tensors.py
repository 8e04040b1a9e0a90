"""The tensors of small files next to a model, such as heads: safetensors, or torch's own format without any code."""

from __future__ import annotations

import pickle
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from draftwire_core.engine.checkpoint.plain_files import check_pointer
from draftwire_core.engine.checkpoint.weight_files import open_safetensors


def read_tensors(place: Path, safetensors: str, pickled: str) -> dict[str, torch.Tensor]:
    """Returns all tensors of whichever of two files a directory has. Raises ValueError and OSError."""
    if (place / safetensors).exists():
        with open_safetensors(place / safetensors) as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    path = place / pickled
    if not path.exists():
        raise ValueError(f"has neither {safetensors} nor {pickled}")
    if not path.is_file():  # opening a pipe would wait for a writer
        raise ValueError(f"{pickled} is not a file")
    check_pointer(path)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{pickled} holds more than tensors, which may be code, and is not read") from error
    except Exception as error:  # torch raises almost anything for truncated and foreign files
        raise ValueError(f"{pickled} cannot be read: {str(error).partition(chr(10))[0] or 'it is empty'}") from error
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in loaded.items()
    ):
        raise ValueError(f"{pickled} is not a table of tensors by name")
    for name, tensor in loaded.items():
        if tensor.nbytes > tensor.untyped_storage().nbytes():  # a copy would have elements that the file does not have
            raise ValueError(f"{pickled}: tensor {name} repeats its elements")
    return loaded


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], like: Path) -> None:
    """Writes a safetensors file. like: a file that the same users may read. Raises OSError."""
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:  # the disk is full, for example
        raise OSError(f"{path} cannot be written: {error}") from error
    # save_file makes the file readable only by its owner; a service that runs as another user has to read it.
    path.chmod(stat.S_IMODE(like.stat().st_mode))


def tensor_of(name: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor by its name. Raises ValueError if it is missing or has another shape."""
    tensor = tensors.get(name)
    if tensor is None:
        raise ValueError(f"tensor {name} is missing")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"tensor {name} has shape {tuple(tensor.shape)}, expected {shape}")
    return tensor
