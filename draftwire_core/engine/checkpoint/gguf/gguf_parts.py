"""The files of a model in GGUF format: one, or the parts that llama-gguf-split made of it."""

from __future__ import annotations

import mmap
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_name import GgufName
from draftwire_core.engine.checkpoint.plain_files import check_pointer

_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_MOST_PARTS = 1024
"""Most files of a model. The largest models today have about a hundred."""
_AGAIN = "the parts are of different sets; download all of them again"
# Python 3.12 has a name for it.
_NO_RESERVE = 0x4000 if sys.platform == "linux" else 0
"""Flag of a mapping for which the system sets no memory aside, as none is ever written."""


def open_parts(path: Path) -> tuple[GgufHeader, list[torch.Tensor]]:
    """Opens a file and, if it is a part of a model, the others, which lie next to it under names that
    llama-gguf-split gives; checks all headers.

    Returns the header of the first part, whose metadata are the model's, with the tensors of all parts; and the bytes
    of each part, uint8, as mapped into memory: `GgufEntry.part` is an index into them. Raises ModelLoadError, which
    names the file, and the tensor or the key of the metadata.
    """
    header, data = _opened(path)
    if header.metadata.integer(_COUNT, 1) <= 1:
        return header, [data]
    paths = _paths(path, header)
    opened = [(header, data) if each == path else _opened(each) for each in paths]
    first = opened[0][0]
    for part, (other, _) in enumerate(opened):
        _check(other, first, part)
    for part, (other, _) in enumerate(opened[1:], 1):
        for name, entry in other.tensors.items():
            if name in first.tensors:
                there = paths[first.tensors[name].part].name
                raise other.metadata.tensor_refusal(name, f"is also in {there}: {_AGAIN}")
            first.tensors[name] = replace(entry, part=part)
    expected = first.metadata.integer(_TENSORS, len(first.tensors))
    if expected != len(first.tensors):
        why = f"is {expected}, but the {len(paths)} parts have {len(first.tensors)} tensors: {_AGAIN}"
        raise first.metadata.refusal(_TENSORS, why)
    return first, [mapped for _, mapped in opened]


def _paths(path: Path, header: GgufHeader) -> list[Path]:
    """The files of all parts, in order. Raises ModelLoadError if one is missing."""
    count = header.metadata.integer(_COUNT)
    if count > _MOST_PARTS:
        raise header.metadata.refusal(_COUNT, f"is {count}; at most {_MOST_PARTS} parts are supported")
    name = GgufName.of(path.name)
    if name.parts != count:
        why = f"is {count}, and the parts of a model have names such as {name.stem}-00001-of-{count:05}.gguf"
        raise header.metadata.refusal(_COUNT, why)
    paths = [path.parent / each for each in name.all_parts()]
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelLoadError(
            f"GGUF file {path}: is one of {count} parts, and {missing[0]}{more} is missing; all parts must be in one "
            "directory"
        )
    return paths


def _check(header: GgufHeader, first: GgufHeader, part: int) -> None:
    """Raises ModelLoadError for a file that is not this part, from 0, of the model that the first one is of."""
    metadata = header.metadata
    if metadata.integer(_NUMBER) != part:
        why = f"is {metadata[_NUMBER]}, but by its name the file is part {part + 1}, number {part}: name it as it was"
        raise metadata.refusal(_NUMBER, why)
    for key in metadata.keys() & first.metadata.keys() - {_NUMBER}:
        ours, theirs = metadata[key], first.metadata[key]
        if isinstance(ours, bool | int | float | str) and ours != theirs:
            raise metadata.refusal(key, f"is {str(ours)[:64]!r}, in the first part {str(theirs)[:64]!r}: {_AGAIN}")


def _opened(path: Path) -> tuple[GgufHeader, torch.Tensor]:
    """The header of one file, and its bytes."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise ModelLoadError(f"GGUF file {path}: there is no such file")
        check_pointer(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:  # which cannot be mapped
                raise ModelLoadError(f"GGUF file {path}: is empty")
            # A private mapping that can be written, since torch warns of others. Nobody writes to it.
            data = mmap.mmap(
                file.fileno(),
                size,
                flags=mmap.MAP_PRIVATE | _NO_RESERVE,
                prot=mmap.PROT_READ | mmap.PROT_WRITE,
            )
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"GGUF file {path}: cannot be read: {error}") from error
    return GgufHeader(str(path), data), torch.frombuffer(data, dtype=torch.uint8)
