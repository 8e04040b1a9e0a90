"""The rows of a forward pass: what it reads, and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from torch import Tensor


class FixedRows(ABC):
    """The rows of one forward pass."""

    def __init__(self, token_ids: Tensor, positions: Tensor, slots: Tensor, draws: Tensor):
        self.token_ids, self.positions, self.slots = token_ids, positions, slots
        """Of each row, int64 [rows]."""
        self.draws = draws
        """The numbers of the tokens to draw, int64 [NUMBERS, rows], see `StepDraws`."""
        self.features: Tensor | None = None
        """A vector for each row, [rows, width], for models that read one next to the token."""

    def __len__(self) -> int:
        return len(self.token_ids)

    @abstractmethod
    def write_and_attend(
        self,
        query: Tensor,
        new: tuple[Tensor, Tensor],
        stored: tuple[Tensor, Tensor],
        scaling: float,
        window: int | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Writes the rows' keys and values, and computes each row's attention to what it sees: [rows, heads, value
        dim], in the dtype of the query.

        query [heads, rows, key dim]; new: keys and values of the rows, [kv_heads, rows, dim] each; stored: those of all
        slots, [kv_heads, slots, dim] each, with slots first in memory. Sinks [heads] take probability but have no
        value.
        """


class Rows(NamedTuple):
    """Results of a pass, by row."""

    logits: Tensor
    """[rows, vocabulary]."""
    states: Tensor
    """The hidden states that the logits were computed from, [rows, hidden]."""
    drawn: Tensor | None = None
    """Tokens and path, int32 [2, room], if the pass draws them, see `KernelSampler.draw`."""
