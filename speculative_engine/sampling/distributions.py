"""Whole distributions of rows of logits: for rules that look at probabilities, and for drafters that draw."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from speculative_engine.sampling.kept_range import kept_range
from speculative_engine.sampling.philox import DOMAIN_DRAW, uniforms
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.token_filters import block_tops
from speculative_engine.tree.token_tree import DraftDistribution


def scaled_logits(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """z / T, -inf where a filter drops the token: what the coupled sampler draws from. [R, V] -> [R, V] float32."""
    scaled = logits.float() / batch.temperatures
    kept = kept_range(logits, block_tops(logits), batch)
    return scaled if kept is None else kept.drop(scaled)


def probabilities(logits: Tensor, batch: SamplingBatch) -> np.ndarray:
    """[R, V] -> [R, V] float64; each row sums to 1 but for rounding."""
    result: np.ndarray = scaled_logits(logits, batch).double().softmax(1).cpu().numpy()
    return result


LIKELIEST = 32
"""Tokens that are drawn from: some 200 bytes a node on the wire."""


def draw(logits: Tensor, batch: SamplingBatch, count: int) -> list[tuple[DraftDistribution, list[int]]]:
    """For each row what is drawn from, and up to `count` tokens in the order they are drawn, without replacement.

    logits [R, V]. Adding Gumbel noise and taking the largest is drawing without replacement, in that order (Kool, van
    Hoof, Welling, arXiv 1903.06059). A row that holds NaN or +inf, or nothing finite, gets nothing.
    """
    scaled = scaled_logits(logits, batch)
    top = scaled.topk(min(LIKELIEST, scaled.shape[1]), dim=1)
    # As they are sent: what is drawn from is then the same on both sides, but for how it is normalised.
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
    """The batch with a lower temperature for some rows: T / (1 + H), H being the entropy of softmax(z / T) in nats.

    Where a drafter is sure, it drafts as ever; where it is not, it drafts its likeliest tokens rather than what the
    noise makes of them, since only these have a chance to be likely enough for the target.
    """
    log_p = (logits[rows].float() / batch.temperatures[rows]).log_softmax(1)
    entropy = -(log_p.exp() * log_p.clamp(min=-1e30)).sum(1, keepdim=True)
    temperatures = batch.temperatures.clone()
    temperatures[rows] /= 1 + entropy.nan_to_num_(nan=0.0)
    return replace(batch, temperatures=temperatures)
