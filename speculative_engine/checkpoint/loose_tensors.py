"""The tensors of small files beside a model, such as heads: safetensors, or torch's own format without any code."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file


def read_tensors(place: Path, safetensors: str, pickled: str) -> dict[str, torch.Tensor]:
    """Returns all tensors of whichever of two files a directory has. Raises ValueError and OSError."""
    if (place / safetensors).exists():
        try:
            found: dict[str, torch.Tensor] = load_file(place / safetensors)
            return found
        except SafetensorError as error:
            raise ValueError(f"{safetensors}: {error}") from error
    if not (place / pickled).exists():
        raise ValueError(f"has neither {safetensors} nor {pickled}")
    try:
        loaded = torch.load(place / pickled, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"{pickled} holds more than tensors, which may be code, and is not read") from error
    except (RuntimeError, EOFError, KeyError) as error:  # raised by torch for truncated and foreign files
        raise ValueError(f"{pickled} cannot be read: {str(error).partition(chr(10))[0] or 'it is empty'}") from error
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in loaded.items()
    ):
        raise ValueError(f"{pickled} is not a table of tensors by name")
    return loaded


def tensor_of(name: str, tensors: Mapping[str, torch.Tensor], shape: tuple[int, ...]) -> torch.Tensor:
    """Returns a tensor by its name. Raises ValueError if it is missing or has another shape."""
    tensor = tensors.get(name)
    if tensor is None:
        raise ValueError(f"tensor {name} is missing")
    if tuple(tensor.shape) != shape:
        raise ValueError(f"tensor {name} has shape {tuple(tensor.shape)}, expected {shape}")
    return tensor
