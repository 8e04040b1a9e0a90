"""Whole distributions of rows of logits, after temperature and filters, for the rules that look at probabilities."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from speculative_engine.sampling.kept_range import kept_range
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.token_filters import block_tops


def scaled_logits(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """z / T, -inf where a filter drops the token: what the coupled sampler draws from. [R, V] -> [R, V] float32."""
    scaled = logits.float() / batch.temperatures
    kept = kept_range(logits, block_tops(logits), batch)
    return scaled if kept is None else kept.drop(scaled)


def probabilities(logits: Tensor, batch: SamplingBatch) -> np.ndarray:
    """[R, V] -> [R, V] float64; each row sums to 1 but for rounding."""
    result: np.ndarray = scaled_logits(logits, batch).double().softmax(1).cpu().numpy()
    return result
