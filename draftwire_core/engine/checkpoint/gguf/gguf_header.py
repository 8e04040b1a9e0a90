"""The header of a GGUF file, parsed within bounds: metadata, and where each tensor lies.

The library's own reader trusts the file's counts and lengths, so a damaged or hostile header makes it loop for hours or
fill the memory. Here every count and length is compared with the bytes that are left before anything is read.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufArray, GgufMetadata, Value

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = "general.alignment"
MOST_HEADER = 64 << 20
"""Most bytes of a header. Those of the largest vocabularies today have 15 MiB."""
_MOST_TENSORS = 1 << 16
_MOST_KEYS = 1 << 16
_MOST_ELEMENTS = 1 << 22
"""Most elements of an array. The largest vocabularies today have 260,000 tokens and twice as many merges."""
_LONGEST_KEY = 1 << 10
"""Most bytes of a key; the format allows more, but nobody uses them."""
_LONGEST_NAME = 64
"""Most bytes of a tensor's name, as of the format."""
_MOST_DIMENSIONS = 4
_LEAST_KEY = 8 + 4 + 1
"""Least bytes of a key with its value: a length, a type and one byte."""
_LEAST_TENSOR = 8 + 4 + 8 + 4 + 8
"""Least bytes of the entry of a tensor: a length, the number of dimensions, one of them, a type and an offset."""
_CODES: Mapping[int, str] = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
"""Formats of numbers, as in the module `struct`, by type."""
PLAIN_TYPES = ("F32", "F16", "BF16")
"""Types of tensors that hold plain numbers."""
STORED_TYPES = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
"""Types of tensors in blocks that are computed with as they are."""
CONVERTED_TYPES = (
    *("Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS"),
    *("IQ1_M", "IQ1_S", "TQ1_0", "TQ2_0", "Q2_0", "Q1_0", "NVFP4"),
)
"""Types of tensors in blocks that become another type as they are read."""
SUPPORTED_TYPES = (*PLAIN_TYPES, *STORED_TYPES, *CONVERTED_TYPES)
"""Types of tensors that are read."""
_REMEDY = f"supported are {', '.join(SUPPORTED_TYPES)}: quantise the model to one of these (llama-quantize)"


class BlockSize(NamedTuple):
    """The name and the block of a type of tensors."""

    type_name: str
    values: int
    size: int
    """Bytes."""


BLOCK_SIZES: Mapping[int, BlockSize] = {
    **{kind.value: BlockSize(kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGMLQuantizationType},
    42: BlockSize("Q2_0", 64, 18),  # the package gguf does not know it
}
"""Types by their numbers in files."""


@dataclass(frozen=True, slots=True)
class GgufEntry:
    """A tensor's place in the file, and its type."""

    name: str
    """The name in the file, such as `blk.0.attn_q.weight`."""
    type: str
    """One of `SUPPORTED_TYPES`."""
    shape: tuple[int, ...]
    """The shape, outputs first; the file has it the other way round."""
    start: int
    """Offset in bytes from the start of the file."""
    row_bytes: int
    """Bytes of a row, which is whole blocks."""
    part: int = 0
    """Index of the file among those of the model."""

    @property
    def size(self) -> int:
        """Size in bytes."""
        return prod(self.shape[:-1]) * self.row_bytes


class GgufHeader:
    """Metadata and tensors of a GGUF file of version 2 or 3, little-endian."""

    def __init__(self, path: str, data: mmap.mmap):
        """Reads the header, and checks that every tensor lies within the file and overlaps no other.

        path: for error messages. data: the file. Raises ModelLoadError, which names the file and the tensor or key.
        """
        self._path = path
        self._data = data
        self._end = min(len(data), MOST_HEADER)
        self._at = 0
        tensors, keys = self._counts()
        values: dict[str, Value] = {}
        for _ in range(keys):
            key = self._name("a key", _LONGEST_KEY)
            if key in values:
                raise self._refusal(f"metadata {key}: duplicate key")
            values[key] = self._value(key)
        self.metadata = GgufMetadata(path, values)
        self.tensors: dict[str, GgufEntry] = {}
        """The tensors by their names in the file."""
        placed = [self._placed() for _ in range(tensors)]
        start = _aligned(self._at, self._alignment())
        for entry, offset in placed:
            self._add(entry, start + offset, aligned=offset % self._alignment() == 0)
        self._check_overlaps()

    def strings(self, key: str) -> list[str]:
        """An array of strings. Raises ModelLoadError if it is missing, another type, or not UTF-8."""
        array = self.metadata.array(key, strings=True)
        read, data, at, found = struct.Struct("<Q").unpack_from, self._data, array.start, []
        try:
            for _ in range(array.count):  # the lengths were checked; there are hundreds of thousands
                end = at + 8 + read(data, at)[0]
                found.append(data[at + 8 : end].decode())
                at = end
        except UnicodeDecodeError as error:
            raise self.metadata.refusal(key, "is not UTF-8") from error
        return found

    def numbers(self, key: str) -> list[int | float]:
        """An array of numbers. Raises ModelLoadError if it is missing or another type."""
        array = self.metadata.array(key, strings=False)
        return list(struct.unpack_from(f"<{array.count}{array.code}", self._data, array.start))

    def _refusal(self, reason: str) -> ModelLoadError:
        return ModelLoadError(f"GGUF file {self._path}: {reason}")

    def _counts(self) -> tuple[int, int]:
        """The numbers of tensors and keys."""
        if self._data[:4] != _MAGIC:
            raise self._refusal(f"is not a GGUF file: begins with {self._data[:4]!r}, not with {_MAGIC!r}")
        self._at = 4
        version = self._number("I", "the version")
        if version not in _VERSIONS:
            big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            why = "is big-endian" if big_endian else f"has version {version}"
            raise self._refusal(f"{why}; supported are little-endian files of versions 2 and 3")
        tensors = self._number("Q", "the number of tensors")
        keys = self._number("Q", "the number of keys")
        self._check_count("tensors", tensors, _LEAST_TENSOR, _MOST_TENSORS)
        self._check_count("keys", keys, _LEAST_KEY, _MOST_KEYS)
        return tensors, keys

    def _check_count(self, what: str, count: int, least: int, most: int) -> None:
        """Refuses a number of parts that do not fit into the rest of the header. least: bytes of a part."""
        if count > most:
            raise self._refusal(f"claims {count} {what}; at most {most} are supported")
        if count * least > self._end - self._at:
            raise self._refusal(f"claims {count} {what}, which do not fit into its {len(self._data)} bytes")

    def _take(self, size: int, what: str) -> int:
        """The offset of the next bytes, which are taken."""
        start = self._at
        if size > self._end - start:
            raise self._too_long(what)
        self._at = start + size
        return start

    def _too_long(self, what: str) -> ModelLoadError:
        if self._end < len(self._data):
            return self._refusal(f"{what}: the header has more than {MOST_HEADER} bytes")
        return self._refusal(f"{what}: the file ends within it, after {len(self._data)} bytes")

    def _number(self, code: str, what: str) -> int:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._take(struct.calcsize(f"<{code}"), what))
        return int(value)

    def _bytes(self, what: str, most: int) -> bytes:
        size = self._number("Q", what)
        if size > most:
            raise self._refusal(f"{what}: claims {size} bytes; at most {most} are supported")
        start = self._take(size, what)
        return self._data[start : self._at]

    def _name(self, what: str, most: int) -> str:
        """A name, which error messages and logs can show."""
        raw = self._bytes(what, most)
        if not raw or not all(0x20 < byte < 0x7F for byte in raw):
            raise self._refusal(f"{what} at byte {self._at - len(raw)}: {raw[:_LONGEST_NAME]!r} is not a name")
        return raw.decode("ascii")

    def _value(self, key: str) -> Value:
        what = f"metadata {key}"
        kind = self._number("I", what)
        if kind == GGUFValueType.STRING:
            # Refused only where it is read: nobody needs the name of a file on the machine that wrote this one.
            return self._bytes(what, self._end).decode(errors="surrogateescape")
        if kind == GGUFValueType.ARRAY:
            return self._array(what)
        code = _CODES.get(kind)
        if code is None:
            raise self._refusal(f"{what}: has unknown type {kind}")
        (value,) = struct.unpack_from(f"<{code}", self._data, self._take(struct.calcsize(f"<{code}"), what))
        # The decimal that was rounded to float32: 1e-05, not 9.999999747378752e-06.
        found: bool | int | float = float(str(np.float32(value))) if code == "f" else value
        return found

    def _array(self, what: str) -> GgufArray:
        kind = self._number("I", what)
        count = self._number("Q", what)
        if kind != GGUFValueType.STRING and kind not in _CODES:
            raise self._refusal(f"{what}: is a list of elements of unsupported type {kind}")
        code = _CODES.get(kind, "")
        width = struct.calcsize(f"<{code}") if code else 8
        if count > _MOST_ELEMENTS:
            raise self._refusal(f"{what}: claims {count} elements; at most {_MOST_ELEMENTS} are supported")
        start = self._at
        if code:
            self._take(count * width, what)
            return GgufArray(strings=False, count=count, start=start, code=code)
        read, data, at, end = struct.Struct("<Q").unpack_from, self._data, start, self._end
        for _ in range(count):  # as tight as can be: there are hundreds of thousands
            if end - at < 8:
                raise self._too_long(what)
            at += 8 + read(data, at)[0]
            if at > end:
                raise self._too_long(what)
        self._at = at
        return GgufArray(strings=True, count=count, start=start, code="")

    def _alignment(self) -> int:
        alignment = self.metadata.integer(_ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
        if alignment < 8 or alignment & (alignment - 1):
            raise self.metadata.refusal(_ALIGNMENT, f"is {alignment}; must be a power of two, at least 8")
        return alignment

    def _placed(self) -> tuple[GgufEntry, int]:
        """The next tensor, and its offset in bytes from the start of the tensors' data."""
        name = self._name("the name of a tensor", _LONGEST_NAME)
        what = f"tensor {name}"
        dimensions = self._number("I", what)
        if not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise self._refusal(f"{what}: claims {dimensions} dimensions; must be 1 to {_MOST_DIMENSIONS}")
        shape = tuple(self._number("Q", what) for _ in range(dimensions))[::-1]
        kind = self._number("I", what)
        offset = self._number("Q", what)
        block = BLOCK_SIZES.get(kind)
        if block is None:
            raise self._refusal(f"{what}: has unknown type {kind}; {_REMEDY}")
        type_name = block.type_name
        if type_name not in SUPPORTED_TYPES:
            raise self._refusal(f"{what}: has type {type_name}; {_REMEDY}")
        if 0 in shape:
            raise self._refusal(f"{what}: has the empty shape {list(shape)}")
        if shape[-1] % block.values:
            raise self._refusal(f"{what}: has rows of {shape[-1]} values, which are no whole {type_name} blocks")
        return GgufEntry(name, type_name, shape, start=0, row_bytes=shape[-1] // block.values * block.size), offset

    def _add(self, entry: GgufEntry, start: int, *, aligned: bool) -> None:
        what = f"tensor {entry.name}"
        if entry.name in self.tensors:
            raise self._refusal(f"{what}: duplicate name")
        if not aligned:
            raise self._refusal(f"{what}: its offset is no multiple of the alignment, {self._alignment()} bytes")
        # Numbers of Python do not overflow, so this also holds for absurd shapes and offsets.
        if start + entry.size > len(self._data):
            raise self._refusal(
                f"{what}: {entry.type} of shape {list(entry.shape)} would be bytes {start} to {start + entry.size}, "
                f"but the file has {len(self._data)}"
            )
        self.tensors[entry.name] = GgufEntry(entry.name, entry.type, entry.shape, start, entry.row_bytes)

    def _check_overlaps(self) -> None:
        end = 0
        for entry in sorted(self.tensors.values(), key=lambda each: each.start):
            if entry.start < end:
                raise self._refusal(f"tensor {entry.name}: overlaps another tensor")
            end = entry.start + entry.size


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
