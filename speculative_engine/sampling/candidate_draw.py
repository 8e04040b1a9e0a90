"""The tokens that a drafter takes for likeliest after each row of a step; from a device with one copy back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from speculative_engine.sampling.coupled_sampler import top_candidates
from speculative_engine.sampling.device_sampler import draw_candidates
from speculative_engine.sampling.sampling_batch import SamplingBatch


class CandidateDraw(NamedTuple):
    """The k best tokens of each row, best first; see `coupled_sampler.Candidates`."""

    token_ids: list[list[int]]
    """-1 where a row keeps fewer."""
    log_probs: list[list[float]]
    """Natural."""


def candidates(logits: Tensor, batch: SamplingBatch, k: int) -> CandidateDraw:
    """Find them on the host, or wherever the logits are. logits [rows, V]."""
    found = top_candidates(logits, batch, k)
    return CandidateDraw(found.token_ids.tolist(), found.log_probs.tolist())


def candidates_on_device(logits: Tensor, batch: SamplingBatch, k: int) -> CandidateDraw:
    """As `candidates`, but the device is asked once, at the end. logits [rows, V]; k: at most 64.

    Rows that filter tokens, and the few that are not settled without asking, are drawn by `candidates`' way.
    """
    if batch.filters:
        return candidates(logits, batch, k)
    found = draw_candidates(logits, batch, k)
    bits = found.log_probs.view(torch.int32).long()
    copied = torch.cat([found.token_ids, bits, found.settled.unsqueeze(1)], dim=1).cpu()
    token_ids, log_probs = copied[:, :k], copied[:, k : 2 * k].int().view(torch.float32)
    unsettled = (copied[:, -1] == 0).nonzero()[:, 0].tolist()
    if unsettled:
        again = top_candidates(logits[unsettled], batch.select(unsettled), k)
        token_ids[unsettled], log_probs[unsettled] = again.token_ids.cpu(), again.log_probs.cpu()
    return CandidateDraw(token_ids.tolist(), log_probs.tolist())
