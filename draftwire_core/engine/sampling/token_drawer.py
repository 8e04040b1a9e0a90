"""Draws the tokens of rows on a device, for callers that want one token for each row and no tree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler, sampler_of
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.step_draws import numbers_on_device

Draw = Callable[[Tensor, SamplingBatch], Tensor]
"""Draws the tokens of rows: logits [rows, V], their parameters on the same device. Returns int64 [rows], with -1 in bad
rows (see `coupled_sampler.Sampled`)."""


def token_drawer(device: torch.device) -> Draw:
    """Returns the quickest way on a device, which does not read from one with the kernels of `KernelSampler`."""
    sampler, _ = sampler_of(device)
    return _draw_by_reference if sampler is None else partial(draw_by_kernels, sampler)


def _draw_by_reference(logits: Tensor, batch: SamplingBatch) -> Tensor:
    return sample(logits, batch).token_ids


def draw_by_kernels(sampler: KernelSampler, logits: Tensor, batch: SamplingBatch) -> Tensor:
    """Draws as the kernels do, or by the reference sampler if there is a filter that they do not know."""
    if batch.typical_p:
        return _draw_by_reference(logits, batch)
    return sampler.draw(logits, numbers_on_device(batch))[0].long()
