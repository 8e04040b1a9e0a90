"""Superblocks of GGUF's types whose values are a scale times integers, but which have no product of their own.

A superblock has 256 values. Each is its float16 scale, divided by a power of two, times the integer scale of a part of
the superblock, times an integer of its own: all exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from gguf.constants import QK_K, GGMLQuantizationType
from gguf.quants import dequantize

from draftwire_core.engine.checkpoint.quantised.stored_weight import IntegerRows, IntegerWeight

_GROUP = 32
"""Values that share a scale in a weight of integers."""
_MIDDLE = 128
"""The unsigned integer that stands for 0."""


class Integers(NamedTuple):
    """The contents of superblocks."""

    halves: torch.Tensor
    """The scales as stored, float16 [superblocks]. A value's unit is one of them divided by the type's divisor."""
    scales: torch.Tensor
    """int8 [superblocks, parts]"""
    quants: torch.Tensor
    """int8 [superblocks, 256]"""


@dataclass(frozen=True, slots=True)
class Superblock:
    """A type of superblocks."""

    type_name: str
    size: int
    """Bytes of a superblock."""
    divisor: int
    """Divisor of the float16 scale of a superblock, a power of two."""
    scales: Callable[[torch.Tensor], torch.Tensor]
    """Reads the integer scales of superblocks, uint8 [superblocks, size]: int8 [superblocks, parts]."""
    part: int = _GROUP
    """Values of a part with an integer scale."""
    scattered: bool = False
    """Whether the bits of the float16 scale are the high nibbles of four numbers, as in IQ1_M, instead of the first two
    bytes."""

    def halves(self, blocks: torch.Tensor) -> torch.Tensor:
        """Returns the scales of superblocks, uint8 [superblocks, size]: float16 [superblocks]."""
        if not self.scattered:
            return _as_numbers(blocks[:, :2], torch.float16)[:, 0]
        high = blocks[:, -7::2]
        return (high[:, ::2] >> 4 | high[:, 1::2] & 0xF0).view(torch.float16)[:, 0]

    def divides(self, blocks: torch.Tensor) -> bool:
        """Whether the units of superblocks, uint8 [superblocks, size], are float16 numbers: tiny ones may not be."""
        halves = self.halves(blocks)
        again = (halves.float() / self.divisor).half().float() * self.divisor
        return bool((again == halves.float()).logical_or_(halves.isnan()).all())

    def integers(self, blocks: torch.Tensor) -> Integers:
        """The contents of superblocks, uint8 [superblocks, size]."""
        scales = self.scales(blocks)
        wholes = dequantize(self._with_scale(blocks).numpy(), GGMLQuantizationType[self.type_name])
        parts = torch.from_numpy(wholes).unflatten(1, (-1, self.part))
        # Of a part whose scale is 0 all values are, so any quants would do.
        quants = parts / torch.where(scales == 0, 1, scales)[..., None]
        return Integers(self.halves(blocks), scales, quants.to(torch.int8).flatten(1))

    def _with_scale(self, blocks: torch.Tensor) -> torch.Tensor:
        """A copy whose float16 scales are the divisor, so that the values are whole numbers."""
        found = blocks.clone()
        scale = torch.tensor(self.divisor, dtype=torch.float16).view(1).view(torch.uint8)
        if self.scattered:
            nibbles = torch.stack([scale & 15, scale >> 4], 1).flatten()
            found[:, -7::2] = found[:, -7::2] & 15 | nibbles << 4
        else:
            found[:, :2] = scale
        return found


def _as_numbers(raw: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes [superblocks, n] as numbers. They are copied, since few of them are aligned."""
    return raw.clone(memory_format=torch.contiguous_format).view(dtype)


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """The low and high halves of bytes [superblocks, n] in turn: [superblocks, 2 n]."""
    return torch.stack([packed & 15, packed >> 4], 2).flatten(1)


def _odd(numbers: torch.Tensor) -> torch.Tensor:
    return (2 * numbers + 1).to(torch.int8)


def _iq1_m(blocks: torch.Tensor) -> torch.Tensor:
    words = _as_numbers(blocks[:, -8:], torch.int16).int()[..., None]
    return _odd(words >> torch.tensor([0, 3, 6, 9]) & 7).flatten(1)


def _iq4_xs(blocks: torch.Tensor) -> torch.Tensor:
    high = _as_numbers(blocks[:, 2:4], torch.int16).int() >> torch.arange(0, 16, 2) & 3
    return (_nibbles(blocks[:, 4:8]) + 16 * high - 32).to(torch.int8)


SUPERBLOCKS: dict[str, Superblock] = {
    each.type_name: each
    for each in (
        Superblock("IQ4_XS", 136, 1, _iq4_xs),
        Superblock("IQ3_S", 110, 1, lambda blocks: _odd(_nibbles(blocks[:, -4:]))),
        Superblock("IQ3_XXS", 98, 2, lambda blocks: _odd(_as_numbers(blocks[:, 66:], torch.int32) >> 28 & 15)),
        Superblock("IQ2_XXS", 66, 8, lambda blocks: _odd(_as_numbers(blocks[:, 2:], torch.int32)[:, 1::2] >> 28 & 15)),
        Superblock("IQ1_S", 50, 8, lambda blocks: _odd(_as_numbers(blocks[:, 34:], torch.int16) >> 12 & 7)),
        Superblock("IQ1_M", 56, 8, _iq1_m, part=16, scattered=True),
    )
}
"""The types by their names."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupedSuperblocks(IntegerWeight):
    """A weight in superblocks as integers of 8 bits with a float32 scale for each 32 values, made as it is packed."""

    form: Superblock

    @classmethod
    def of(cls, type_name: str, raw: torch.Tensor) -> GroupedSuperblocks | None:
        """Reads a weight, uint8 [outputs, bytes of a row]; None for types without a scale for each 32 values."""
        form = SUPERBLOCKS.get(type_name)
        if form is None or form.part != _GROUP:
            return None
        return cls(len(raw), raw.shape[1] // form.size * QK_K, 8, _GROUP, {"weight": raw}, form)

    def rows(self, first: int, last: int) -> IntegerRows:
        """Reads the outputs from `first` to `last` - 1."""
        with np.errstate(all="ignore"):
            found = self.form.integers(self.tensors["weight"][first:last].reshape(-1, self.form.size))
        scales = (found.halves.float() / self.form.divisor)[:, None] * found.scales.float()
        integers = (found.quants.view(torch.uint8) ^ _MIDDLE).view(last - first, self.inputs)
        scales = scales.view(last - first, self.groups)
        return IntegerRows(integers, scales, torch.full_like(scales, _MIDDLE, dtype=torch.uint8))
