"""What a forward pass returns."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Rows(NamedTuple):
    """Results of a pass, by row."""

    logits: Tensor
    """[rows, vocabulary]."""
    states: Tensor
    """The hidden states that the logits were computed from, [rows, hidden]."""
    drawn: Tensor | None = None
    """Tokens and path, int32 [2, room], if the pass draws them, see `KernelSampler.draw`."""
