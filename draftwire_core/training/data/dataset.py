"""Examples on disk: an append-only, bounded file that survives a crash while it is written.

A record is a header (lengths and a checksum) and the example's arrays. Opening the file drops a record truncated by a
crash and keeps those before it. A description of the examples is stored with the file; a data set with a different
description is refused.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np

from draftwire_core.training.data.example import Example

_HEADER = struct.Struct("<4sIIIII")  # magic, tokens, first, positions, top, checksum of the arrays
_MAGIC = b"dwx1"


class DatasetError(Exception):
    """The data set cannot be used; the message has the reason."""


class Dataset:
    """The examples of one directory. One process at a time may append."""

    def __init__(self, directory: Path, description: Mapping[str, object], *, most_bytes: int):
        """Opens or creates a data set. description: origin of the examples, as JSON values. Raises DatasetError."""
        directory.mkdir(parents=True, exist_ok=True)
        _check_description(directory / "dataset.json", dict(description))
        self.path = directory / "examples.bin"
        self._most_bytes = most_bytes
        self._offsets: list[int] = []
        self._size = self._scan()

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> Example:
        with self.path.open("rb") as file:
            file.seek(self._offsets[index])
            found = _read(file)
        assert found is not None, "what was scanned is whole"
        return found

    def append(self, example: Example) -> bool:
        """Appends an example; returns False, and writes nothing, if that would exceed the bound."""
        payload = b"".join(
            part.tobytes()
            for part in (
                example.tokens.astype("<i4"),
                example.token_ids.astype("<i4"),
                example.log_probs.astype("<f4"),
            )
        )
        shape = (len(example.tokens), example.first, example.positions, example.token_ids.shape[1])
        record = _HEADER.pack(_MAGIC, *shape, zlib.crc32(payload)) + payload
        if self._size + len(record) > self._most_bytes:
            return False
        with self.path.open("r+b") as file:
            file.seek(self._size)
            file.write(record)
        self._offsets.append(self._size)
        self._size += len(record)
        return True

    def _scan(self) -> int:
        """Records the start of each complete record; truncates the file after the last one and returns its end."""
        if not self.path.exists():
            self.path.touch()
        with self.path.open("r+b") as file:
            end = 0
            while _read(file) is not None:
                self._offsets.append(end)
                end = file.tell()
            file.truncate(end)
        return end


def _read(file: BinaryIO) -> Example | None:
    """Returns the example in the next record; None if there is no complete one."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        return None
    magic, tokens, first, positions, top, checksum = _HEADER.unpack(header)
    if magic != _MAGIC:
        return None
    size = 4 * (tokens + 2 * positions * top)
    payload = file.read(size)
    if len(payload) < size or zlib.crc32(payload) != checksum:
        return None
    ids = np.frombuffer(payload, "<i4", tokens + positions * top)
    log_probs = np.frombuffer(payload, "<f4", positions * top, 4 * len(ids))
    shape = (positions, top)
    return Example(ids[:tokens], first, ids[tokens:].reshape(shape), log_probs.reshape(shape))


def _check_description(path: Path, description: dict[str, object]) -> None:
    if not path.exists():
        new = path.with_suffix(".new")
        new.write_text(json.dumps(description, indent=2) + "\n")
        new.replace(path)
        return
    try:
        found = json.loads(path.read_text())
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise DatasetError(
            f"{path} is damaged, which said the origin of the data set: use another directory"
        ) from error
    differing = sorted(key for key in {*found, *description} if found.get(key) != description.get(key))
    if differing:
        told = ", ".join(f"{key} {found.get(key)!r}, now {description.get(key)!r}" for key in differing)
        raise DatasetError(f"the data set in {path.parent} has another origin: {told}; use another directory")
