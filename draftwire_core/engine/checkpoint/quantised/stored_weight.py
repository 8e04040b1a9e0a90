"""Quantised weights as they lie in a checkpoint: integers in groups, and 8-bit floats.

Their tensors are views of mapped files. They are read a few outputs at a time, when the weight is packed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError

_NO_NUMBER = 0x7F
"""The bits of an element of e4m3 that is no number, but for its sign."""


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
    """The tensors of the checkpoint, by the names after that of the layer: "weight", float8_e4m3fn [outputs, inputs],
    and the scales."""
    scale_name: str
    """Name of the tensor of scales, [blocks of outputs, blocks of inputs] or a single one."""
    refusal: ModelLoadError
    """The error for elements that are no numbers."""

    def rows(self, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Reads the outputs from `first` to `last` - 1: float8_e4m3fn [outputs, inputs], a view, and scales, float32
        [outputs, blocks of inputs]. Raises ModelLoadError for elements that are no numbers."""
        values = self.tensors["weight"][first:last]
        if ((values.view(torch.uint8) & _NO_NUMBER) == _NO_NUMBER).any():
            raise self.refusal
        blocks = torch.arange(first, last) // self.block_outputs
        scales = self.tensors[self.scale_name].float().reshape(-(-self.outputs // self.block_outputs), -1)
        return values, scales[blocks]


def unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Returns the integers in words, int32 [..., words]: a new uint8 [..., words * 32 / bits]."""
    given = words.contiguous().view(torch.uint8)
    if bits == 8:
        return given.clone()
    return torch.stack([given & 15, given >> 4], -1).flatten(-2)
