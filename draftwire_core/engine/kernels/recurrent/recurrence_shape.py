"""The parts of recurrences: their shape and weights, their memory, and the tokens of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

Decays = Literal["head", "value", "rate", "mean"]
SOURCE, FROM, TO, OUT, COPY = range(5)
"""Fields of an item, see `Recurrence` in `csrc/ops.h`."""


@dataclass(frozen=True, slots=True)
class RecurrenceShape:
    """Sizes and kind of a layer's recurrence: a causal convolution, and a state for each value head (or none)."""

    channels: int
    taps: int
    """Inputs that a result of the convolution depends on, the token's own included."""
    activates: bool = True
    """Whether SiLU follows the convolution."""
    value_heads: int = 0
    """0 for a layer whose only memory is the convolution's."""
    key_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0
    query_at: int = 0
    """First channel of the queries; those of keys and values likewise."""
    key_at: int = 0
    value_at: int = 0
    normalises: bool = False
    """Whether keys and queries are scaled to length 1, and queries multiplied by `scale`."""
    eps: float = 0.0
    scale: float = 1.0
    corrects: bool = False
    """Delta rule: whether what the key finds in the state is subtracted from the value."""
    decay_each_key: bool = False
    """Whether there is a decay for each element of the key, instead of one for each head."""
    decays: Decays = "head"
    """The decay of an element of the state: a factor of its head, or of its head's key; a factor of its value; or
    e^(step of its value * its own rate), where values are multiplied by their steps, too. With "mean", the result is
    the mean of a channel's values, weighted by e^key, which decays at the channel's rate (`csrc/ops.h`)."""

    @property
    def head_decays(self) -> int:
        """Decays, or steps, of a head."""
        if self.decays == "mean":
            return 0
        if self.decays != "head":
            return self.value_dim
        return self.key_dim if self.decay_each_key else 1

    @property
    def gates(self) -> int:
        """Gates of a token: the decays of all heads, then a beta for each head unless each value has a decay."""
        betas = 1 if self.decays == "head" else 0
        return self.value_heads * (self.head_decays + betas) if self.value_heads else 0

    def state_bytes(self, dtype: torch.dtype) -> int:
        """Memory of a sequence's state. dtype: of the convolution's inputs."""
        window = (self.taps - 1) * self.channels * dtype.itemsize
        return int(window + 4 * self.value_heads * self.key_dim * self.value_dim)

    def input_bytes(self, dtype: torch.dtype) -> int:
        """Memory of the inputs of a token whose update of the state can be undone."""
        return int(self.channels * dtype.itemsize + 4 * self.gates)


class RecurrenceWeights(NamedTuple):
    """The weights of a layer's recurrence, float32."""

    convolution: torch.Tensor
    """[taps, channels], the token's own tap last"""
    bias: torch.Tensor | None = None
    """Of the convolution, [channels]."""
    direct: torch.Tensor | None = None
    """The share of a value that is added to its own result, [value_heads]; with a decay for each value,
    [value_heads * value_dim]."""
    rates: torch.Tensor | None = None
    """Of elements of the state that have rates, at most 0, [value_heads, key_dim, value_dim]; with "mean", rates and
    bonuses of channels, [value_heads, 3, value_dim], of which the last third is not used."""


@dataclass(slots=True)
class LayerMemory:
    """A layer's memory next to the batch: what is kept of tokens and of sequences between passes."""

    inputs: torch.Tensor
    """Inputs of the convolution, of tokens that may be rolled back: [tokens, channels], in the model's dtype."""
    gates: torch.Tensor
    """Gates of these tokens, float32 [tokens, gates]."""
    windows: torch.Tensor
    """The inputs before each state, oldest first: [states, taps - 1, channels], in the model's dtype."""
    states: torch.Tensor
    """float32 [states, value_heads, key_dim, value_dim]"""


@dataclass(slots=True)
class PassItems:
    """The tokens that a pass processes, for one number of taps; arrays are int64, see `Recurrence` in `csrc/ops.h`."""

    items: np.ndarray
    taps: np.ndarray
    groups: np.ndarray
    saves: np.ndarray
    levels: int
