"""Coupled sampling: Gumbel-max sampling with noise that depends on (seed, position, token) alone. Law 1 of the design.

    y_t = argmax_v  z_t(v) / T + g(seed, t, v)          over the tokens that top_k, top_p, min_p, typical_p keep

The sample is exact, and is determined by the seed, so a draft is verified by comparing tokens. Daliri, Musco, Suresh,
"Coupling without communication and drafter-invariant speculative decoding", arXiv 2408.07978.

A row's result depends on that row alone, to the bit: every operation is elementwise, a maximum, or a sum of integers.
Scores are float32 (z / T rounded, plus g, rounded). Among equal scores the lowest id wins.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from draftwire_core.engine.sampling.compiled_sampler import best_tokens, fits
from draftwire_core.engine.sampling.gumbel import (
    NOISE_BLOCK,
    block_first_arrivals,
    gumbel_after,
    gumbel_of_arrivals,
    gumbel_of_waits,
    winners_and_waits,
)
from draftwire_core.engine.sampling.kept_range import KeptRange, kept_range
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.token_filters import MASS_BITS, block_logits, block_tops, columns, total_mass

__all__ = ["Candidates", "Sampled", "SamplingBatch", "sample", "top_candidates"]

NO_TOKEN = -1
FIRST_BLOCKS, FIRST_TOKENS = 16, 32
"""Blocks, and tokens of these blocks, that are examined first, each times k. Larger numbers give a better first bound,
which leaves fewer tokens to examine afterwards. The result is the same for any numbers."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """One token per row."""

    token_ids: Tensor
    """[R] int64; -1 in bad rows."""
    bad_rows: Tensor
    """[R] bool: rows whose logits hold NaN or +inf, or no finite value. The caller fails only their sequences."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """The k best tokens of each row, best first; padded with id -1, score and log_prob -inf where a row keeps fewer."""

    token_ids: Tensor
    """[R, k] int64."""
    scores: Tensor
    """[R, k] float32: z / T + g; the logits in greedy rows."""
    log_probs: Tensor
    """[R, k] float32: natural log of softmax(z / T), before the filters; T = 1 in greedy rows."""
    bad_rows: Tensor
    """[R] bool, as in `Sampled`."""


def sample(logits: Tensor, batch: SamplingBatch, vocab_size: int | None = None) -> Sampled:
    """Draws the token of each row. logits [R, V], any float dtype; ids >= vocab_size (padding) are never drawn."""
    logits = _limited(logits, batch, vocab_size)
    if fits(logits):
        token_ids = best_tokens(logits, batch, 1, log_probs=False)[0][:, 0]
        return Sampled(token_ids, token_ids == NO_TOKEN)
    block_top = block_tops(logits)
    bad_rows = ~block_top.amax(1).isfinite()
    if not batch.sampled_rows:
        token_ids = _argmax(logits, block_top)
    else:
        token_ids = _best(logits, block_top, batch, 1, greedy_rows=False)[0][:, 0]
        if len(batch.sampled_rows) < len(batch):
            token_ids = torch.where(batch.greedy, _argmax(logits, block_top), token_ids)
    return Sampled(token_ids.masked_fill_(bad_rows, NO_TOKEN), bad_rows)


def top_candidates(logits: Tensor, batch: SamplingBatch, k: int, vocab_size: int | None = None) -> Candidates:
    """The k tokens of each row with the best scores, best first, the lowest id first among equals.

    logits [R, V]. The first is the token that `sample` returns. Noise and filters are the request's, so a drafter whose
    logits resemble the target's predicts the target's own samples.
    """
    logits = _limited(logits, batch, vocab_size)
    if fits(logits):
        token_ids, scores, log_probs = best_tokens(logits, batch, k, log_probs=True)
        assert log_probs is not None, "they were requested"
        return Candidates(token_ids, scores, log_probs, token_ids[:, 0] == NO_TOKEN)
    block_top = block_tops(logits)
    top = block_top.amax(1)
    bad_rows = ~top.isfinite()
    token_ids, scores = _best(logits, block_top, batch, k)
    token_ids.masked_fill_(bad_rows.unsqueeze(1), NO_TOKEN)
    log_probs = log_probs_of(logits, batch, top, token_ids)
    return Candidates(token_ids, scores.masked_fill_(token_ids == NO_TOKEN, -torch.inf), log_probs, bad_rows)


def log_probs_of(logits: Tensor, batch: SamplingBatch, top: Tensor, token_ids: Tensor) -> Tensor:
    """Natural log of softmax(z / T) of the given tokens, before the filters, [R, k] float32; -inf for `NO_TOKEN`.

    logits [R, V], top [R] float32 the largest logit of each row, token_ids [R, k] int64.
    """
    top = top / batch.temperatures[:, 0]
    mass = total_mass(logits, batch.temperatures, top).double().mul_(2.0**-MASS_BITS)
    scaled = logits.gather(1, token_ids.clamp(min=0)).float() / batch.temperatures
    log_probs = ((scaled - top.unsqueeze(1)).double() - mass.log().unsqueeze(1)).float()
    return log_probs.masked_fill_(token_ids == NO_TOKEN, -torch.inf)


def _limited(logits: Tensor, batch: SamplingBatch, vocab_size: int | None) -> Tensor:
    if logits.dim() != 2 or logits.shape[0] != len(batch):
        raise ValueError(f"logits of shape {tuple(logits.shape)} for a batch of {len(batch)} rows")
    return logits if vocab_size is None else logits[:, :vocab_size]


def _best(
    logits: Tensor, block_top: Tensor, batch: SamplingBatch, k: int, greedy_rows: bool = True
) -> tuple[Tensor, Tensor]:
    """The k best tokens of each row and their scores, exactly, with noise drawn only where it can matter.

    Returns ids [R, k] int64 and scores [R, k] float32; -1 and -inf where a row has fewer, and in greedy rows without
    `greedy_rows`. The results of bad rows are undefined.
    """
    kept = kept_range(logits, block_top, batch)
    first, noise_top = _block_noise(batch, block_top)

    # An upper bound on the scores of a block: float32 division and addition are monotone, and g <= M_b.
    bound = block_top / batch.temperatures
    if kept is not None:
        kept.bound(bound)
    bound += noise_top
    if not greedy_rows and len(batch.sampled_rows) < len(batch):
        bound.masked_fill_(batch.greedy.unsqueeze(1), -torch.inf)

    reach = _reach(logits, batch, k, kept, first, noise_top, bound)

    # Some tens of tokens per row remain, whatever the logits: see docs/concepts.md.
    row, block = ((bound >= reach) & (bound > -torch.inf)).nonzero(as_tuple=True)
    scaled = _scaled(logits, batch, block.unsqueeze(1), kept, row).squeeze(1)
    ceiling = scaled + noise_top[row, block].unsqueeze(1)
    pair, offset = ((ceiling >= reach[row]) & (scaled > -torch.inf)).nonzero(as_tuple=True)
    row, block = row[pair], block[pair]
    token = block * NOISE_BLOCK + offset
    scores = scaled[pair, offset]
    if first is not None:
        noise = gumbel_after(first[row, block], batch.seeds[row], batch.positions[row], token)
        scores = scores + noise.masked_fill_(batch.greedy[row], 0)
    return _rank(row, token, scores, len(batch), k)


def _reach(
    logits: Tensor,
    batch: SamplingBatch,
    k: int,
    kept: KeptRange | None,
    first: Tensor | None,
    noise_top: Tensor,
    bound: Tensor,
) -> Tensor:
    """A score that at least k tokens of the row reach, [R, 1] float32; -inf if none was found.

    Examines the blocks with the highest bounds: the tokens that attain the block's noise maximum, which win where
    logits are flat, and the tokens with the largest logits, which win where logits are peaked.
    """
    blocks = bound.topk(min(k * FIRST_BLOCKS, bound.shape[1]), dim=1, sorted=False).indices
    scaled = _scaled(logits, batch, blocks, kept)
    maxima = noise_top.gather(1, blocks)
    ceiling = (scaled + maxima.unsqueeze(-1)).flatten(1)
    if first is None:
        return (
            ceiling.topk(k, dim=1).values[:, -1:]
            if k <= ceiling.shape[1]
            else bound.new_full((len(batch), 1), -torch.inf)
        )
    pick = ceiling.topk(min(k * FIRST_TOKENS, ceiling.shape[1]), dim=1, sorted=False).indices
    slot = pick // NOISE_BLOCK
    winners, waits = winners_and_waits(
        batch.seeds, batch.positions, blocks, blocks.gather(1, slot) * NOISE_BLOCK + pick % NOISE_BLOCK
    )
    is_winner = winners.gather(1, slot) == pick % NOISE_BLOCK
    noise = gumbel_of_waits(first.gather(1, blocks).gather(1, slot), waits, is_winner)
    scores = scaled.flatten(1).gather(1, pick) + noise.masked_fill_(batch.greedy.unsqueeze(1), 0)
    scores.masked_fill_(is_winner, -torch.inf)  # they are in the other list
    winner_scores = scaled.gather(2, winners.unsqueeze(-1)).squeeze(-1) + maxima
    scores = torch.cat([scores, winner_scores], dim=1)
    if scores.shape[1] < k:
        return bound.new_full((len(batch), 1), -torch.inf)
    return scores.topk(k, dim=1).values[:, -1:]


def _argmax(logits: Tensor, block_top: Tensor) -> Tensor:
    """Id of the largest logit, the lowest among equals, [R] int64; torch.argmax is several times slower on a CPU."""
    row = torch.arange(len(logits), device=logits.device)
    block = block_top.argmax(1, keepdim=True)
    return block[:, 0] * NOISE_BLOCK + block_logits(logits, row, block)[:, 0].argmax(1)


def _block_noise(batch: SamplingBatch, block_top: Tensor) -> tuple[Tensor | None, Tensor]:
    """First arrivals (float64; None if all rows are greedy) and M_b (float32; 0 in greedy rows), each [R, blocks]."""
    noise_top = torch.zeros_like(block_top)
    if not batch.sampled_rows:
        return None, noise_top
    if len(batch.sampled_rows) == len(batch):
        first = block_first_arrivals(batch.seeds, batch.positions, block_top.shape[1])
        return first, gumbel_of_arrivals(first)
    which = torch.tensor(batch.sampled_rows, device=block_top.device)
    first = torch.ones_like(block_top, dtype=torch.float64)
    drawn = block_first_arrivals(batch.seeds[which], batch.positions[which], block_top.shape[1])
    first[which], noise_top[which] = drawn, gumbel_of_arrivals(drawn)
    return first, noise_top


def _scaled(
    logits: Tensor, batch: SamplingBatch, blocks: Tensor, kept: KeptRange | None, row: Tensor | None = None
) -> Tensor:
    """Scaled logits of all 64 ids of the given blocks, -inf for ids beyond the vocabulary or filtered out.

    blocks [n, m] int64 of the rows `row` [n] (all R rows by default) -> [n, m, 64] float32.
    """
    if row is None:
        row = torch.arange(len(batch), device=logits.device)
    scaled = block_logits(logits, row, blocks) / batch.temperatures[row].unsqueeze(-1)
    return scaled if kept is None else kept.drop(scaled, row)


def _rank(row: Tensor, token: Tensor, score: Tensor, rows: int, k: int) -> tuple[Tensor, Tensor]:
    """Ids and scores of the k best of each row, each [R, k], from a list ordered by row and token id."""
    column, width = columns(row, rows)
    width = max(width, k)
    # The dtype is explicit: a model that loads in another thread changes torch's default for the whole process.
    scores = torch.full((rows, width), -torch.inf, dtype=torch.float32, device=row.device)
    token_ids = torch.full((rows, width), NO_TOKEN, dtype=torch.int64, device=row.device)
    scores[row, column], token_ids[row, column] = score, token
    if k == 1:
        best = scores.argmax(1, keepdim=True)  # the first among equals
        return token_ids.gather(1, best), scores.gather(1, best)
    scores, order = scores.sort(dim=1, descending=True, stable=True)  # stable: the lower id first among equals
    return token_ids.gather(1, order[:, :k]), scores[:, :k]
