"""How drafters find the best tokens of their rows on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.sampling.coupled_sampler import top_candidates
from draftwire_core.engine.sampling.device_sampler import CandidateDraw, candidates, candidates_on_device
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler, sampler_of
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.step_draws import numbers_on_device

Find = Callable[[Tensor, SamplingBatch, int], CandidateDraw]
"""Finds the best tokens of rows: logits [rows, V], their parameters on the same device, how many."""


def candidate_finder(device: torch.device) -> Find:
    """The quickest way on a device."""
    sampler, _ = sampler_of(device)
    if sampler is not None:
        return partial(candidates_by_kernels, sampler)
    return candidates if device.type == "cpu" else candidates_on_device


def candidates_by_kernels(sampler: KernelSampler, logits: Tensor, batch: SamplingBatch, k: int) -> CandidateDraw:
    """Finds what `candidates` finds, log-probabilities within rounding, and reads from the device once, at the end.

    Rows with typical_p take the way of `candidates`, which waits for the device.
    """
    ranked = sampler.rank(logits, numbers_on_device(batch), k).cpu()
    token_ids, log_probs = ranked[:, 0], ranked[:, 1].view(torch.float32)
    if rows := list(batch.typical_p):
        which = to_device(torch.tensor(rows, dtype=torch.int64), logits.device)
        again = top_candidates(logits.index_select(0, which), batch.select(rows), k)
        token_ids[rows], log_probs[rows] = again.token_ids.cpu().int(), again.log_probs.cpu()
    return CandidateDraw(token_ids.tolist(), log_probs.tolist())
