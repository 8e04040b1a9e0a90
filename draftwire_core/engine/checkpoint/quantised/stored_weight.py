"""Quantised weights as they lie in a checkpoint: integers in groups, 8-bit floats, blocks of MXFP4, and others.

Their tensors are views of mapped files. They are read a few outputs at a time, when the weight is packed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError

_NO_NUMBER = 0x7F
"""The bits of an element of e4m3 that is no number, but for its sign."""
_MIDDLE = 128
"""The unsigned integer that stands for 0 in weights of 8 bits."""


class IntegerRows(NamedTuple):
    """Some outputs of a weight of integers. Its values are scale * (integer - zero point)."""

    integers: torch.Tensor
    """uint8 [outputs, inputs], from 0 to 2^bits - 1"""
    scales: torch.Tensor
    """float32 [outputs, groups]"""
    zeros: torch.Tensor
    """uint8 [outputs, groups]"""


@dataclass(frozen=True, slots=True, eq=False)
class IntegerWeight(ABC):
    """A weight of integers, with a scale and a zero point for each group of an output's inputs."""

    outputs: int
    inputs: int
    bits: int
    """4 or 8."""
    group: int
    """Inputs per group, a divisor of `inputs`; `inputs` itself where a scale is for a whole output."""
    tensors: Mapping[str, torch.Tensor]
    """The tensors of the checkpoint, by the names after that of the layer, and `order`."""

    @abstractmethod
    def rows(self, first: int, last: int) -> IntegerRows:
        """Reads the outputs from `first` to `last` - 1, as new tensors. Inputs are in the checkpoint's order."""

    @property
    def order(self) -> torch.Tensor | None:
        """int64 [inputs]: the inputs, group by group; None if those of a group follow each other."""
        return self.tensors.get("order")

    @property
    def groups(self) -> int:
        """Groups per output."""
        return self.inputs // self.group


@dataclass(frozen=True, slots=True, eq=False)
class FloatWeight:
    """A weight of 8-bit floats (e4m3), with a scale for each block of outputs and inputs."""

    outputs: int
    inputs: int
    group: int
    """Inputs per block; `inputs` itself where a scale is for a whole output."""
    block_outputs: int
    """Outputs per block."""
    tensors: Mapping[str, torch.Tensor]
    """The tensors of the checkpoint: "weight", float8_e4m3fn [outputs, inputs], and "scales", [blocks of outputs,
    blocks of inputs] or a single one."""
    refusal: ModelLoadError
    """The error for elements that are no numbers."""

    def rows(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads the outputs from `first` to `last` - 1: float8_e4m3fn [outputs, inputs], a view, and scales, float32
        [outputs, blocks of inputs]. Raises ModelLoadError for elements that are no numbers."""
        values = self.tensors["weight"][first:last]
        if ((values.view(torch.uint8) & _NO_NUMBER) == _NO_NUMBER).any():
            raise self.refusal
        blocks = torch.arange(first, last) // self.block_outputs
        scales = self.tensors["scales"].float().reshape(-(-self.outputs // self.block_outputs), -1)
        return values, scales[blocks]


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Blocks:
    """A weight in blocks of MXFP4: 32 numbers of 4 bits (e2m1), with an exponent each."""

    blocks: torch.Tensor
    """uint8 [outputs, blocks, 16]: two neighbouring inputs each, the first in the low bits. A view of a mapped file."""
    exponents: torch.Tensor
    """uint8 [outputs, blocks], likewise."""

    def as_gguf(self) -> torch.Tensor:
        """The blocks as GGUF has them, new uint8 [outputs, blocks * 17]: exponent, then inputs 0 to 15 in the low bits
        and 16 to 31 in the high ones."""
        first, second = unpacked_bytes(self.blocks).chunk(2, 2)
        return torch.cat([self.exponents[..., None], first | second << 4], -1).flatten(1)


@dataclass(frozen=True, slots=True, eq=False)
class ConvertedWeight(ABC):
    """A weight of a type that no product reads. Its values become float16, a few outputs at a time."""

    outputs: int
    inputs: int
    type_name: str
    """The name of its type, such as "nvfp4"."""
    tensors: Mapping[str, torch.Tensor]
    """The tensors of the checkpoint, by the names after that of the layer."""

    @abstractmethod
    def rows(self, first: int, last: int) -> torch.Tensor:
        """The values of the outputs from `first` to `last` - 1, new float32 [outputs, inputs]."""


StoredWeight: TypeAlias = IntegerWeight | FloatWeight | Mxfp4Blocks | ConvertedWeight
"""A weight as it lies in a checkpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class Int8Rows(IntegerWeight):
    """Integers of 8 bits as such, "weight", int8 [outputs, inputs], with a scale per output and no zero points."""

    scales: torch.Tensor
    """float32 [outputs]"""

    def rows(self, first: int, last: int) -> IntegerRows:
        integers = self.tensors["weight"][first:last].view(torch.uint8) ^ _MIDDLE
        scales = self.scales[first:last, None]
        return IntegerRows(integers, scales, torch.full_like(scales, _MIDDLE, dtype=torch.uint8))


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns the integers in words, int32 [..., words]: a new uint8 [..., words * 32 / bits]."""
    given = words.contiguous().view(torch.uint8)
    return given.clone() if bits == 8 else unpacked_bytes(given)


def unpacked_bytes(given: torch.Tensor) -> torch.Tensor:
    """Returns the integers of 4 bits in bytes, uint8 [..., bytes]: a new uint8 [..., bytes * 2], low bits first."""
    return torch.stack([given & 15, given >> 4], -1).flatten(-2)
