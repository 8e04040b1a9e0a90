"""The interface of recurrent mixers: how each gets inputs and gates from hidden states, and an output from results.

A mixer keeps the modules of transformers' own, whose linear layers are replaced like all others.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import torch
from torch import nn

from draftwire_core.engine.kernels.recurrent.recurrence_shape import RecurrenceShape, RecurrenceWeights
from draftwire_core.engine.model.linear.row_exact import in_whole_vectors

_HEADS = (64, 32, 16)
Rest: TypeAlias = torch.Tensor | None


class MixerRecurrence(NamedTuple):
    """A recurrence of a mixer."""

    shape: RecurrenceShape
    weights: RecurrenceWeights


Advance = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""Runs a mixer's recurrence of a number, for the rows of the pass: inputs [rows, channels] in the model's dtype, and
gates [rows, gates], float32 -> results, float32."""


class Mixer(ABC):
    """A mixer of one layer."""

    recurrences: tuple[MixerRecurrence, ...]
    """In the order in which they run in a pass."""
    returns_pair: bool = False
    """Whether transformers' module returns a second value besides its output."""

    @abstractmethod
    def mix(self, hidden: torch.Tensor, advance: Advance) -> torch.Tensor:
        """Returns the mixer's output [rows, width]. hidden: [rows, width]"""


class OneRecurrence(Mixer):
    """A mixer around one recurrence, whose gates do not depend on results."""

    def __init__(self, module: nn.Module, shape: RecurrenceShape, weights: RecurrenceWeights):
        self.module = module
        self.shape = shape
        self.recurrences = (MixerRecurrence(shape, weights),)

    @abstractmethod
    def project(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Rest]:
        """Returns the rows' inputs of the convolution [rows, channels], in the model's dtype, their gates, float32
        [rows, gates], and what `finish` needs. hidden: [rows, width]."""

    @abstractmethod
    def finish(self, results: torch.Tensor, inputs: torch.Tensor, rest: Rest) -> torch.Tensor:
        """Returns the mixer's output [rows, width]. results: of the recurrence, float32."""

    def mix(self, hidden: torch.Tensor, advance: Advance) -> torch.Tensor:
        """See Mixer."""
        inputs, gates, rest = self.project(hidden)
        return self.finish(advance(0, inputs, gates), inputs, rest)


def convolution_of(convolution: nn.Conv1d, direct: torch.Tensor | None = None) -> RecurrenceWeights:
    """The weights of a recurrence with a convolution of transformers. direct: see RecurrenceWeights"""
    return RecurrenceWeights(
        convolution.weight.detach().squeeze(1).t().float().contiguous(),
        None if convolution.bias is None else convolution.bias.detach().float().contiguous(),
        None if direct is None else direct.detach().float().contiguous(),
    )


def without_convolution(channels: int) -> torch.Tensor:
    """The weight of a convolution that does nothing."""
    return torch.ones(1, channels)


def no_gates(hidden: torch.Tensor) -> torch.Tensor:
    """The gates of a recurrence without gates, for rows of hidden states."""
    return hidden.new_empty(len(hidden), 0, dtype=torch.float32)


def head_of(values: int) -> int:
    """Values of a head, where they are all alike; threads share the work by heads."""
    return next((head for head in _HEADS if values % head == 0), values)


def silu(inputs: torch.Tensor) -> torch.Tensor:
    """SiLU, row-exact."""
    return in_whole_vectors(nn.functional.silu, inputs)


def unit_rms(values: torch.Tensor, eps: float) -> torch.Tensor:
    """Rows with a root mean square of 1. values [..., width], float32"""
    return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + eps)
