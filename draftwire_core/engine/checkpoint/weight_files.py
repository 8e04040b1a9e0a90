"""The files that hold a checkpoint's weights, and what their headers say of them."""

from __future__ import annotations

import json
import zipfile
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from draftwire_core.engine.checkpoint.checkpoint import Checkpoint, ModelLoadError, adapter_refusal
from draftwire_core.engine.checkpoint.load_errors import load_errors
from draftwire_core.engine.checkpoint.plain_files import check_pointer

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLE, _PICKLE_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
_MOST_INDEX = 64 << 20
"""Most bytes of an index. That of DeepSeek-V3 has 9 MB."""
_MOST_HEADER = 16 << 20
"""Most bytes of the header of a safetensors file."""
_MOST_TENSORS = 1 << 20
"""Most tensors of a checkpoint. Large mixtures of experts have a few hundred thousand."""
_ZIP = b"PK\x03\x04"
"""First bytes of a pickle with a table of contents."""
_LEAST_STORAGE = 64
"""Bytes of a tensor in a pickle without a table of contents, by which their number is estimated."""
_MOST_ESTIMATED = 20_000
"""Most tensors that the size of such a pickle is taken for."""


class WeightTotals(NamedTuple):
    """Contents of a checkpoint's files in all."""

    tensors: int
    """Number of tensors; for pickles, of storages."""
    elements: int
    """Number of elements; for pickles at most that, which is their size in bytes."""


def weight_files(checkpoint: Checkpoint) -> list[Path]:
    """The files that transformers reads the weights from. Raises ModelLoadError if there are none, or if one of them
    is missing or is a Git LFS pointer."""
    what, directory = f"model {checkpoint.name}", checkpoint.directory
    named = next((name for name in (SINGLE, INDEX, _PICKLE, _PICKLE_INDEX) if (directory / name).is_file()), None)
    if named is None:
        adapter = adapter_refusal(directory)  # some trainers write its base model's configuration next to it
        if adapter is not None:
            raise ModelLoadError(f"{what}: {adapter}")
        there = [name for name in (SINGLE, _PICKLE) if (directory / name).exists()]
        if there:
            raise ModelLoadError(f"{what}: {there[0]} is not a file")
        raise ModelLoadError(f"{what}: there is no {SINGLE}, no {INDEX} and no {_PICKLE} in the directory")
    files = [named] if named in (SINGLE, _PICKLE) else sorted(set(weight_map(checkpoint, named).values()))
    for file in files:
        if not (directory / file).is_file():
            raise ModelLoadError(f"{what}: there is no {file}, which {named} names")
        with load_errors(what):
            check_pointer(directory / file)
    return [directory / file for file in files]


def weight_map(checkpoint: Checkpoint, index: str = INDEX) -> dict[str, str]:
    """The name of the file of each tensor, from an index. Raises ModelLoadError."""
    what = f"model {checkpoint.name}"
    path = checkpoint.directory / index
    try:
        check_pointer(path)
        if path.stat().st_size > _MOST_INDEX:
            raise ValueError(f"it has more than {_MOST_INDEX} bytes")
        found = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        files = {str(tensor): str(file) for tensor, file in found.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ModelLoadError(f"{what}: {index} cannot be read: {error}") from error
    if not files:
        raise ModelLoadError(f"{what}: {index} names no tensors")
    strange = next((file for file in files.values() if Path(file).name != file), None)
    if strange is not None:
        raise ModelLoadError(f"{what}: {index} names {strange}, which is not a file next to it")
    return files


def weight_totals(checkpoint: Checkpoint) -> WeightTotals:
    """Reads what the files hold from their headers alone. Raises ModelLoadError for files that are damaged."""
    what = f"model {checkpoint.name}"
    tensors = elements = 0
    for path in weight_files(checkpoint):
        if path.suffix == ".safetensors":
            with load_errors(what), open_safetensors(path) as file:
                shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118 - not a dict
            tensors += len(shapes)
            elements += sum(prod(shape) for shape in shapes)
        else:
            with load_errors(what):
                tensors += _storages(path)
            elements += path.stat().st_size
        if tensors > _MOST_TENSORS:
            raise ModelLoadError(f"{what}: its files hold more than {_MOST_TENSORS} tensors")
    return WeightTotals(tensors, elements)


def open_safetensors(path: Path) -> Any:
    """Opens a safetensors file and reads its header, within bounds. Raises ValueError, which names the file, and
    OSError."""
    if not path.is_file():  # opening a pipe would wait for a writer
        raise ValueError(f"there is no {path.name}")
    check_pointer(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    if size < 8:
        raise ValueError(f"{path.name} is damaged: it has {size or 'no'} bytes")
    if header > size - 8:
        raise ValueError(f"{path.name} is damaged: its header would have {header} bytes, and the file has {size}")
    if header > _MOST_HEADER:
        raise ValueError(f"{path.name}: its header has {header} bytes; at most {_MOST_HEADER} are read")
    try:
        return safe_open(path, framework="pt")
    except SafetensorError as error:
        raise ValueError(f"{path.name} is damaged: {_cut_off(path) or error}") from error


def _cut_off(path: Path) -> str | None:
    """Says which tensor of a damaged file lies beyond its end; None if the damage is another."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            size = path.stat().st_size - 8 - header_bytes
            header = json.loads(file.read(header_bytes)) if size >= 0 else {}
            ends = {tensor: about["data_offsets"][1] for tensor, about in header.items() if tensor != "__metadata__"}
            tensor = next((tensor for tensor, end in ends.items() if end > size), None)
            missing = max(ends.values(), default=0) - size
    except (OSError, ValueError, KeyError, IndexError, AttributeError, TypeError, RecursionError):
        return None
    return None if tensor is None else f"it ends before tensor {tensor} does; {missing} bytes are missing"


def _storages(path: Path) -> int:
    """Number of tensors' storages in a pickle, from its table of contents. Raises ValueError for one that is cut off,
    and OSError."""
    with path.open("rb") as file:
        if file.read(len(_ZIP)) != _ZIP:  # the format before torch 1.6
            return min(path.stat().st_size // _LEAST_STORAGE, _MOST_ESTIMATED)
    try:
        with zipfile.ZipFile(path) as archive:
            return sum("/data/" in name for name in archive.namelist())
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path.name} is damaged: its table of contents, at its end, cannot be read") from error
