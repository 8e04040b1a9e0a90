"""Types of GGUF's tensors that have no product of their own: in which other type the same values can be stored.

Each block keeps its scale, or a part of it, and its quants become integers of the other type, so that no value changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize

from draftwire_core.engine.checkpoint.gguf.gguf_superblock import SUPERBLOCKS, Superblock

_KVALUES = torch.tensor([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=torch.int8)
"""The values of IQ4_NL's quants, as of ggml."""


@dataclass(frozen=True, slots=True)
class Repacking:
    """The conversion of blocks of one type to blocks of another."""

    size: int
    """Bytes of a block."""
    into: Literal["q8_0", "q6_k", "q4_0"]
    """The other type."""
    convert: Callable[[torch.Tensor], torch.Tensor]
    """Converts blocks, uint8 [blocks, size], to those of the other type, uint8 [blocks, bytes]."""
    holds: Callable[[torch.Tensor], bool] = lambda _: True
    """Whether the other type has all values of blocks, uint8 [blocks, size]."""

    def rows(self, raw: torch.Tensor) -> torch.Tensor:
        """Converts rows, uint8 [outputs, bytes of a row]."""
        return self.convert(raw.reshape(-1, self.size)).reshape(len(raw), -1)


def repacking_of(type_name: str, raw: torch.Tensor) -> Repacking | None:
    """The conversion of a tensor, uint8 [..., bytes of a row]; None if no other type has its values."""
    how = REPACKINGS.get(type_name)
    return how if how is not None and how.holds(raw.reshape(-1, how.size)) else None


def repacked_values(type_name: str, raw: torch.Tensor) -> torch.Tensor:
    """The values of a tensor of a type in `UNKNOWN_TO_GGUF`: float32 [..., values of a row]."""
    how = REPACKINGS[type_name]
    rows = how.rows(raw.reshape(-1, raw.shape[-1]))
    return torch.from_numpy(dequantize(rows.numpy(), GGMLQuantizationType[how.into.upper()])).reshape(
        *raw.shape[:-1], -1
    )


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The low halves of bytes [blocks, n], then the high ones: [blocks, 2 n]."""
    return torch.cat([packed & 15, packed >> 4], 1)


def _q8_0(scales: torch.Tensor, quants: torch.Tensor) -> torch.Tensor:
    """Blocks of Q8_0 from float16 scales, uint8 [blocks, 2], and quants, int8 [blocks, 32]."""
    return torch.cat([scales, quants.view(torch.uint8)], 1)


def _iq4_nl(blocks: torch.Tensor) -> torch.Tensor:
    return _q8_0(blocks[:, :2], _KVALUES[_nibbles(blocks[:, 2:]).int()])


def _q4_0(scales: torch.Tensor, quants: torch.Tensor) -> torch.Tensor:
    """Blocks of Q4_0 from float16 scales, uint8 [blocks, 2], and quants from -8 to 7, less -8, uint8 [blocks, n * 32],
    of which n blocks have the same scale: [blocks, n * 18]."""
    halves = quants.unflatten(1, (-1, 2, 16))
    packed = halves[:, :, 0] | halves[:, :, 1] << 4
    return torch.cat([scales[:, None].expand(-1, packed.shape[1], -1), packed], 2).flatten(1)


def _tq1_0(blocks: torch.Tensor) -> torch.Tensor:
    """Of five ternary digits in a byte, the highest first: bytes are rounded-up 256ths of 243."""
    powers = torch.tensor([1, 3, 9, 27, 81], dtype=torch.uint8)[:, None]
    parts = ((blocks[:, :32], powers), (blocks[:, 32:48], powers), (blocks[:, 48:52], powers[:4]))
    rest = torch.cat([(part[:, None] * times).flatten(1) for part, times in parts], 1)
    return _q4_0(blocks[:, 52:], (rest.short() * 3 >> 8).to(torch.uint8) + 7)


def _tq2_0(blocks: torch.Tensor) -> torch.Tensor:
    """Of two bits: in each 32 bytes four times 32 values, the lowest bits first."""
    moved = blocks[:, :64].unflatten(1, (2, 1, 32)) >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None] & 3
    return _q4_0(blocks[:, 64:66], moved.flatten(1) + 7)


def _q2_0(blocks: torch.Tensor) -> torch.Tensor:
    """Of two bits: four values in a byte, the lowest bits first."""
    quants = blocks[:, 2:, None] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8) & 3
    return _q4_0(blocks[:, :2], quants.flatten(1) + 7)


def _q1_0(blocks: torch.Tensor) -> torch.Tensor:
    """Of one bit, which says whether a value is the scale or its negative: eight in a byte, the lowest bit first."""
    bits = blocks[:, 2:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return _q4_0(blocks[:, :2], 2 * bits.flatten(1) + 7)


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


def _superblock(form: Superblock, blocks: torch.Tensor) -> torch.Tensor:
    """Superblocks of Q6_K. Quants of all types that use this are between -32 and 31."""
    halves, scales, quants = form.integers(blocks)
    units = (halves.float() / form.divisor).half()[:, None].view(torch.uint8)
    return _q6_k(units, scales.repeat_interleave(form.part // 16, 1), quants)


REPACKINGS: dict[str, Repacking] = {
    "Q1_0": Repacking(18, "q4_0", _q1_0),
    "Q2_0": Repacking(18, "q4_0", _q2_0),
    "TQ1_0": Repacking(54, "q4_0", _tq1_0),
    "TQ2_0": Repacking(66, "q4_0", _tq2_0),
    "IQ4_NL": Repacking(18, "q8_0", _iq4_nl),
    "Q3_K": Repacking(110, "q6_k", _q3_k),
    **{
        name: Repacking(
            SUPERBLOCKS[name].size, "q6_k", partial(_superblock, SUPERBLOCKS[name]), SUPERBLOCKS[name].divides
        )
        for name in ("IQ3_S", "IQ3_XXS", "IQ1_S", "IQ1_M")
    },
}
"""Conversions by the names of the types that they are for."""

UNKNOWN_TO_GGUF = ("Q1_0", "Q2_0")
"""Types whose blocks the package gguf does not read."""
