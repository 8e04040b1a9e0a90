"""The tokens that a step draws, in the numbers that the kernels of `triton_kernels.draw` read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch

ROW, SEED, POSITION, TEMPERATURE, TOKEN, PARENT, TOP_K, TOP_P, MIN_P = range(9)
"""The numbers of a draw: the row of logits to draw from, -1 for none; seed and position, the bits of unsigned ones; the
bits of the float32 temperature, 0 for greedy draws; the own token of the row; the draw that its row follows. Then
filters, 0 for none: k; the bits of the float64 p; those of the float32 logarithm of min_p, plus 2^32."""
PLAIN_NUMBERS, NUMBERS = 6, 9
"""Without the filters, and with them."""


class StepDraws(NamedTuple):
    """Draws whose rows of logits come first among those that a step wants, in their order."""

    sampling: SamplingBatch
    """Parameters of the rows, on the host."""
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
        """The draws' numbers, each of the row of logits of its own index, int64 [n, draws].

        Those of filters are there only if there are any.
        """
        count = NUMBERS if self.sampling.filters else PLAIN_NUMBERS
        numbers = torch.zeros((count, len(self)), dtype=torch.int64)
        self.write(numbers.numpy(), np.arange(len(self)))
        return numbers

    def write(self, numbers: np.ndarray, rows: np.ndarray) -> None:
        """Writes the draws' numbers. Those with typical_p are left out: the kernels draw no token for them.

        numbers: int64 [PLAIN_NUMBERS if there are no filters, or NUMBERS, room for at least as many draws]; rows: int64
        [draws], the row of logits of each.
        """
        count, sampling = len(self), self.sampling
        temperatures = torch.where(sampling.greedy, 0.0, sampling.temperatures[:, 0])
        numbers[ROW, count:] = -1
        numbers[ROW, :count] = rows
        numbers[ROW, list(sampling.typical_p)] = -1
        numbers[SEED, :count] = sampling.seeds.numpy()
        numbers[POSITION, :count] = sampling.positions.numpy()
        numbers[TEMPERATURE, :count] = temperatures.view(torch.int32).numpy()
        numbers[TOKEN, :count] = self.tokens
        numbers[PARENT, :count] = self.parents
        if len(numbers) > PLAIN_NUMBERS:
            numbers[TOP_K:, :count] = 0
            if sampling.filters:
                write_filters(numbers, sampling)


def numbers_on_device(sampling: SamplingBatch) -> Tensor:
    """The numbers of draws whose parameters are on a device, without trees, int64 [NUMBERS, draws] there.

    Each is of the row of logits of its own index. Filters are sent by a further copy, if there are any.
    """
    temperatures = sampling.temperatures[:, 0].masked_fill(sampling.greedy, 0.0).view(torch.int32).long()
    rows = torch.arange(len(sampling), device=temperatures.device)
    plain = torch.stack([rows, sampling.seeds, sampling.positions, temperatures, rows, rows])
    if not sampling.filters:
        return plain
    filters = np.zeros((NUMBERS, len(sampling)), dtype=np.int64)
    write_filters(filters, sampling)
    return torch.cat([plain, to_device(torch.from_numpy(filters[PLAIN_NUMBERS:]), plain.device)])


def write_filters(numbers: np.ndarray, sampling: SamplingBatch) -> None:
    """Writes the numbers of filters into zeros, int64 [NUMBERS, room]."""
    for row, k in sampling.top_k.items():
        numbers[TOP_K, row] = k
    for row, p in sampling.top_p.items():
        numbers[TOP_P, row] = np.float64(p).view(np.int64)
    for row, share in sampling.min_p.items():
        numbers[MIN_P, row] = (1 << 32) | int(np.float32(share).view(np.uint32))


def write_none(numbers: np.ndarray) -> None:
    """Writes that nothing is drawn. numbers: int64 [NUMBERS, room]."""
    numbers[ROW] = -1
