"""Coupled sampling without a word from the device: all is queued, and nothing is asked before it is done.

`coupled_sampler` opens the blocks of the vocabulary that can hold a winner, however many those are, so it has to ask
how many. Here a fixed number of blocks is opened, the ones with the highest bounds: nearly always enough, and where it
was not, the bound of the next block says so.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from speculative_engine.coupled_sampler import NO_TOKEN
from speculative_engine.gumbel import (
    BLOCK,
    block_first_arrivals,
    gumbel_of_arrivals,
    gumbel_of_waits,
    winners_and_waits,
)
from speculative_engine.sampling_batch import SamplingBatch
from speculative_engine.token_filters import block_logits, block_tops

_OPENED = 64
"""Blocks of a row whose tokens are looked at."""


class DeviceDraw(NamedTuple):
    """One token a row, on the device."""

    token_ids: Tensor
    """[R] int64; -1 in bad rows, as `coupled_sampler.Sampled` has it."""
    settled: Tensor
    """[R] bool: no token of an unopened block can have a higher score, or as high a one."""


def draw(logits: Tensor, batch: SamplingBatch, opened: int = _OPENED) -> DeviceDraw:
    """What `coupled_sampler.sample` draws in settled rows. logits [R, V]; batch: without filters."""
    block_top = block_tops(logits)
    bad = ~block_top.amax(1).isfinite()
    greedy = batch.greedy.unsqueeze(1)
    first = block_first_arrivals(batch.seeds, batch.positions, block_top.shape[1])
    noise_top = gumbel_of_arrivals(first).masked_fill_(greedy, 0)
    bound = block_top / batch.temperatures + noise_top
    width = min(opened + 1, bound.shape[1])
    bounds, blocks = bound.topk(width, dim=1)
    if width > opened:
        following, blocks = bounds[:, opened], blocks[:, :opened]
    else:
        following = bound.new_full((len(batch),), -torch.inf)
    row = torch.arange(len(batch), device=logits.device)
    scaled = block_logits(logits, row, blocks) / batch.temperatures.unsqueeze(2)
    token_ids = blocks.unsqueeze(2) * BLOCK + torch.arange(BLOCK, device=logits.device)
    winners, waits = winners_and_waits(batch.seeds, batch.positions, blocks, token_ids.flatten(1))
    is_winner = winners.unsqueeze(2) == token_ids & (BLOCK - 1)
    noise = gumbel_of_waits(first.gather(1, blocks).unsqueeze(2), waits.view_as(scaled), is_winner)
    scores = (scaled + noise.masked_fill_(greedy.unsqueeze(2), 0)).flatten(1)
    best = scores.amax(1)
    # The lowest id wins among equals.
    tied = token_ids.flatten(1).masked_fill(scores < best.unsqueeze(1), logits.shape[1])
    return DeviceDraw(tied.amin(1).masked_fill_(bad, NO_TOKEN), (best > following) | bad)
