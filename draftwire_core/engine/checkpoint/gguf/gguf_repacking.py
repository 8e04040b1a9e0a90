"""Types of GGUF's tensors that have no product of their own: in which other type the same values can be stored.

Each block keeps its scale, and its quants become integers of the other type, so that no value changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

_KVALUES = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8)
"""The values of IQ4_NL's quants, as of ggml."""


@dataclass(frozen=True, slots=True)
class Repacking:
    """The conversion of blocks of one type to blocks of another."""

    size: int
    """Bytes of a block."""
    into: Literal["q8_0", "q6_k"]
    """The other type, with as many values in a block."""
    convert: Callable[[torch.Tensor], torch.Tensor]
    """Converts blocks, uint8 [blocks, size], to those of the other type, uint8 [blocks, its size]."""


def repacked(type_name: str, raw: torch.Tensor) -> torch.Tensor:
    """Converts rows in blocks of a type in `REPACKINGS`, uint8 [outputs, bytes of a row], to rows of the other type."""
    how = REPACKINGS[type_name]
    return how.convert(raw.reshape(-1, how.size)).reshape(len(raw), -1)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The low halves of bytes [blocks, n], then the high ones: [blocks, 2 n]."""
    return torch.cat([packed & 15, packed >> 4], 1)


def _q8_0(scales: torch.Tensor, quants: torch.Tensor) -> torch.Tensor:
    """Blocks of Q8_0 from float16 scales, uint8 [blocks, 2], and quants, int8 [blocks, 32]."""
    return torch.cat([scales, quants.view(torch.uint8)], 1)


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return _q8_0(blocks[:, :2], _KVALUES[_nibbles(blocks[:, 2:]).int()])


def _tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    """Of two bits: in each 32 bytes four times 32 values, the lowest bits first."""
    moved = blocks[:, :64].unflatten(1, (2, 1, 32)) >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None] & 3
    quants = moved.reshape(-1, 32).view(torch.int8) - 1
    return _q8_0(blocks[:, None, 64:66].expand(-1, 8, -1).reshape(-1, 2), quants).reshape(len(blocks), -1)


def _q3_k(blocks: torch.Tensor) -> torch.Tensor:
    high, low, packed, unit = blocks[:, :32], blocks[:, 32:96], blocks[:, 96:108], blocks[:, 108:110]
    # Bit b of byte i of `high` is the third bit of value 32 b + i; 0 there takes 4 away.
    third = (high[:, None] >> torch.arange(8, dtype=torch.uint8)[:, None] & 1).flatten(1)
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    two = (low.unflatten(1, (2, 1, 32)) >> shifts & 3).flatten(1)
    quants = two | third << 2
    lower = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], 1)
    upper = (packed[:, None, 8:] >> shifts & 3).flatten(1)
    scales = (lower | upper << 4).view(torch.int8) - 32
    return _q6_k(unit, scales, quants.view(torch.int8) - 4)


def _q6_k(units: torch.Tensor, scales: torch.Tensor, quants: torch.Tensor) -> torch.Tensor:
    """Superblocks of Q6_K from float16 units, uint8 [blocks, 2], scales, each of 16 values, int8 [blocks, 16], and
    quants from -32 to 31, int8 [blocks, 256]."""
    unsigned = (quants + 32).view(torch.uint8).unflatten(1, (2, 4, 32))
    low = unsigned[:, :, :2] & 15 | (unsigned[:, :, 2:] & 15) << 4
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]
    high = (unsigned >> 4 << shifts).sum(2, dtype=torch.uint8)
    return torch.cat([low.flatten(1), high.flatten(1), scales.view(torch.uint8), units], 1)


REPACKINGS: dict[str, Repacking] = {
    "IQ4_NL": Repacking(18, "q8_0", _iq4_nl),
    "TQ2_0": Repacking(66, "q8_0", _tq2_0),
    "Q3_K": Repacking(110, "q6_k", _q3_k),
}
"""Conversions by the names of the types that they are for."""
