"""Draws tokens with the kernels of the sampler, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.sampling.kernel_sampler import KernelSampler
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.step_draws import NUMBERS, PLAIN_NUMBERS, StepDraws


def numbers_of(
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    *,
    rows: Sequence[int] | None = None,
    tree: tuple[list[int], list[int]] | None = None,
    room: int | None = None,
) -> Tensor:
    """Returns the numbers of draws. rows: of logits, by default each draw's own; tree: see `tree_of`, by default roots
    alone; room: for more draws."""
    count = len(params)
    sampling = SamplingBatch.build(params, positions)
    numbers = torch.zeros((NUMBERS if sampling.filters else PLAIN_NUMBERS, room or count), dtype=torch.int64)
    draws = StepDraws.of_roots(sampling) if tree is None else StepDraws(sampling, *tree)
    draws.write(numbers.numpy(), np.arange(count) if rows is None else np.array(rows))
    return numbers


def drawn_by_kernels(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Returns the token of each row."""
    tokens: list[int] = KernelSampler().draw(logits, numbers_of(params, positions))[0].tolist()
    return tokens
