"""The tokens that a step draws, in the numbers that the kernels of `triton_kernels.draw` read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from speculative_engine.sampling.sampling_batch import SamplingBatch

ROW, SEED, POSITION, TEMPERATURE, TOKEN, PARENT = range(6)
"""The numbers of a draw: the row of logits to draw from, -1 for none; seed and position, the bits of unsigned ones; the
bits of the float32 temperature, 0 for greedy draws; the own token of the row; the draw that its row follows."""
NUMBERS = 6


class StepDraws(NamedTuple):
    """Draws whose rows of logits come first among those that a step wants, in their order."""

    sampling: SamplingBatch
    """Their parameters, on the host."""
    tokens: list[int]
    """The own token of each row; -1 for roots."""
    parents: list[int]
    """The draw whose row each row follows; a root is its own parent."""

    @classmethod
    def of_roots(cls, sampling: SamplingBatch) -> StepDraws:
        """Draws without trees. sampling: on the host."""
        return cls(sampling, [-1] * len(sampling), list(range(len(sampling))))

    def __len__(self) -> int:
        return len(self.tokens)

    def numbers(self) -> Tensor:
        """The draws' numbers, int64 [NUMBERS, draws], each of the row of logits of its own index."""
        numbers = torch.zeros((NUMBERS, len(self)), dtype=torch.int64)
        self.write(numbers.numpy(), np.arange(len(self)))
        return numbers

    def write(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Writes the draws' numbers. Those that drop tokens are left out: the kernels draw no token for them.

        numbers: int64 [NUMBERS, room for at least as many draws]; rows: int64 [draws], the row of logits of each.
        """
        count, sampling = len(self), self.sampling
        temperatures = torch.where(sampling.greedy, 0.0, sampling.temperatures[:, 0])
        numbers[ROW, count:] = -1
        numbers[ROW, :count] = rows
        numbers[ROW, sampling.filtered_rows] = -1
        numbers[SEED, :count] = sampling.seeds.numpy()
        numbers[POSITION, :count] = sampling.positions.numpy()
        numbers[TEMPERATURE, :count] = temperatures.view(torch.int32).numpy()
        numbers[TOKEN, :count] = self.tokens
        numbers[PARENT, :count] = self.parents


def numbers_on_device(sampling: SamplingBatch) -> Tensor:
    """The numbers of draws whose parameters are on a device, without trees, int64 [NUMBERS, draws] there.

    Each is of the row of logits of its own index; whether it drops tokens is not looked at.
    """
    temperatures = sampling.temperatures[:, 0].masked_fill(sampling.greedy, 0.0).view(torch.int32).long()
    rows = torch.arange(len(sampling), device=temperatures.device)
    return torch.stack([rows, sampling.seeds, sampling.positions, temperatures, rows, rows])


def write_none(numbers: np.ndarray) -> None:
    """Writes that nothing is drawn. numbers: int64 [NUMBERS, room]."""
    numbers[ROW] = -1
