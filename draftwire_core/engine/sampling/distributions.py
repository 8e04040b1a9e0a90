"""Distributions of rows of logits, for acceptance rules that use probabilities and for drafters that draw from them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from draftwire_core.engine.sampling.kept_range import kept_range
from draftwire_core.engine.sampling.philox import DOMAIN_DRAW, uniforms
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.token_filters import block_tops
from draftwire_core.engine.tree.token_tree import DraftDistribution


def scaled_logits(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """The logits z / T that the coupled sampler draws from, -inf for filtered tokens. [R, V] -> [R, V] float32."""
    scaled = logits.float() / batch.temperatures
    kept = kept_range(logits, block_tops(logits), batch)
    return scaled if kept is None else kept.drop(scaled)


def probabilities(logits: Tensor, batch: SamplingBatch) -> np.ndarray:
    """The probabilities that the coupled sampler draws from. [R, V] -> [R, V] float64; rows sum to 1 up to rounding."""
    result: np.ndarray = scaled_logits(logits, batch).double().softmax(1).cpu().numpy()
    return result


LIKELIEST = 32
"""Number of tokens that `draw` chooses from; their distribution takes some 200 bytes per node on the wire."""


def draw(logits: Tensor, batch: SamplingBatch, count: int) -> list[tuple[DraftDistribution, list[int]]]:
    """Draws up to `count` tokens of each row without replacement; returns each row's distribution and tokens in order.

    logits [R, V]. Taking the largest values after adding Gumbel noise is drawing without replacement, in that order
    (Kool, van Hoof, Welling, arXiv 1903.06059). A row that holds NaN or +inf, or nothing finite, gets no tokens.
    """
    scaled = scaled_logits(logits, batch)
    top = scaled.topk(min(LIKELIEST, scaled.shape[1]), dim=1)
    # Float32, as sent on the wire: both sides then have the same distribution, up to normalisation.
    q = top.values.double().softmax(1).float()
    q = torch.where(scaled.amax(1, keepdim=True).isfinite(), q, 0.0)
    u = uniforms(batch.seeds.unsqueeze(1), batch.positions.unsqueeze(1), top.indices, DOMAIN_DRAW)
    order = (q.double().log() - (-u.log()).log()).argsort(1, descending=True)
    ids, weights, order = top.indices.tolist(), q.tolist(), order.tolist()
    found = []
    for tokens, weight, places in zip(ids, weights, order, strict=True):
        support = sum(w > 0 for w in weight)  # the largest come first
        drawn = [tokens[place] for place in places[: min(count, support)]]
        found.append((DraftDistribution(tokens[:support], weight[:support]), drawn))
    return found


def by_entropy(logits: Tensor, batch: SamplingBatch, rows: list[int]) -> SamplingBatch:
    """The batch with temperature T / (1 + H) in the given rows, H being the entropy of softmax(z / T) in nats.

    A confident drafter drafts as usual. An unsure one drafts its likeliest tokens regardless of the noise, since only
    these may be likely enough for the target.
    """
    log_p = (logits[rows].float() / batch.temperatures[rows]).log_softmax(1)
    entropy = -(log_p.exp() * log_p.clamp(min=-1e30)).sum(1, keepdim=True)
    temperatures = batch.temperatures.clone()
    temperatures[rows] /= 1 + entropy.nan_to_num_(nan=0.0)
    return replace(batch, temperatures=temperatures)
