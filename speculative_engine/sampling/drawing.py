"""How a drafter with a model draws tokens for the rule of rejection, and at which temperature it drafts."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from speculative_engine.sampling.distributions import scaled_logits
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.uniforms import DOMAIN_DRAW, uniforms
from speculative_engine.tree.draft_distribution import DraftDistribution

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
