"""Coupled sampling without synchronising with the device: all operations are queued, and only the result is read.

`coupled_sampler` opens every block of the vocabulary that can hold a winner, so it has to wait for their number. Here a
fixed number of blocks is opened, those with the highest bounds. That is nearly always enough; where it was not, the
bound of the next block shows it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from draftwire_core.engine.sampling.coupled_sampler import NO_TOKEN, log_probs_of, top_candidates
from draftwire_core.engine.sampling.gumbel import (
    NOISE_BLOCK,
    block_first_arrivals,
    gumbel_of_arrivals,
    gumbel_of_waits,
    winners_and_waits,
)
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.token_filters import block_logits, block_tops

_OPENED = 64
"""Number of blocks of a row whose tokens are scored."""


class DeviceDraw(NamedTuple):
    """One token per row, on the device."""

    token_ids: Tensor
    """[R] int64; -1 in bad rows, as in `coupled_sampler.Sampled`."""
    settled: Tensor
    """[R] bool: rows in which no token of an unopened block can reach the score of the best."""


class DeviceCandidates(NamedTuple):
    """The k best tokens of each row, best first, on the device, as in `coupled_sampler.Candidates`."""

    token_ids: Tensor
    """[R, k] int64; -1 where there are fewer, and in bad rows."""
    log_probs: Tensor
    """[R, k] float32."""
    settled: Tensor
    """[R] bool: rows in which no token of an unopened block can be among the k best."""


class _Opened(NamedTuple):
    """The tokens of each row's opened blocks, by ascending id."""

    token_ids: Tensor
    """[R, n] int64."""
    scores: Tensor
    """[R, n] float32: z / T + g; -inf beyond the vocabulary."""
    following: Tensor
    """[R] float32: an upper bound of the scores in unopened blocks; -inf if there are none, or no finite logits."""
    top: Tensor
    """[R] float32: the row's largest logit."""

    @property
    def bad(self) -> Tensor:
        """[R] bool: bad rows, as in `coupled_sampler.Sampled`."""
        return ~self.top.isfinite()


def draw(logits: Tensor, batch: SamplingBatch, opened: int = _OPENED) -> DeviceDraw:
    """Draws the tokens that `coupled_sampler.sample` draws, in settled rows. logits [R, V]; batch: without filters."""
    found = _open(logits, batch, opened)
    best = found.scores.amax(1)
    # The lowest id wins among equals.
    tied = found.token_ids.masked_fill(found.scores < best.unsqueeze(1), logits.shape[1])
    return DeviceDraw(tied.amin(1).masked_fill_(found.bad, NO_TOKEN), (best > found.following) | found.bad)


def draw_candidates(logits: Tensor, batch: SamplingBatch, k: int, opened: int = _OPENED) -> DeviceCandidates:
    """Finds the candidates that `coupled_sampler.top_candidates` finds, in settled rows.

    logits [R, V]; batch: without filters; k <= 64.
    """
    found = _open(logits, batch, opened)
    bad = found.bad
    scores, order = found.scores.sort(dim=1, descending=True, stable=True)  # stable: the lower id first among equals
    scores, token_ids = scores[:, :k], found.token_ids.gather(1, order[:, :k])
    missing = scores.isneginf() | bad.unsqueeze(1)
    token_ids = token_ids.masked_fill(missing, NO_TOKEN)
    log_probs = log_probs_of(logits, batch, found.top, token_ids)
    settled = (scores[:, -1] > found.following) | found.following.isneginf() | bad
    return DeviceCandidates(token_ids, log_probs, settled)


def _open(logits: Tensor, batch: SamplingBatch, opened: int) -> _Opened:
    block_top = block_tops(logits)
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
    blocks = blocks.sort(1).values
    row = torch.arange(len(batch), device=logits.device)
    scaled = block_logits(logits, row, blocks) / batch.temperatures.unsqueeze(2)
    token_ids = blocks.unsqueeze(2) * NOISE_BLOCK + torch.arange(NOISE_BLOCK, device=logits.device)
    winners, waits = winners_and_waits(batch.seeds, batch.positions, blocks, token_ids.flatten(1))
    is_winner = winners.unsqueeze(2) == token_ids & (NOISE_BLOCK - 1)
    noise = gumbel_of_waits(first.gather(1, blocks).unsqueeze(2), waits.view_as(scaled), is_winner)
    scores = scaled + noise.masked_fill_(greedy.unsqueeze(2), 0)
    return _Opened(token_ids.flatten(1), scores.flatten(1), following, block_top.amax(1))


class CandidateDraw(NamedTuple):
    """The k best tokens of each row, best first, as Python lists."""

    token_ids: list[list[int]]
    """Token ids; -1 where a row keeps fewer."""
    log_probs: list[list[float]]
    """Natural log-probabilities."""


def candidates(logits: Tensor, batch: SamplingBatch, k: int) -> CandidateDraw:
    """Finds the k best tokens with `coupled_sampler`, on the device of the logits [rows, V]."""
    found = top_candidates(logits, batch, k)
    return CandidateDraw(found.token_ids.tolist(), found.log_probs.tolist())


def candidates_on_device(logits: Tensor, batch: SamplingBatch, k: int) -> CandidateDraw:
    """Finds the same as `candidates`, but reads from the device once, at the end. logits [rows, V]; k: at most 64.

    A batch in which any row filters tokens, and the few rows that are not settled, take `coupled_sampler`'s way.
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
