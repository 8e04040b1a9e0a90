"""Whole distributions of rows of logits, after temperature and filters, for the rules that look at probabilities."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from speculative_engine.gumbel import BLOCK
from speculative_engine.sampling_batch import SamplingBatch
from speculative_engine.token_filters import thresholds


def scaled_logits(logits: Tensor, batch: SamplingBatch) -> Tensor:
    """z / T, -inf where a filter drops the token: what the coupled sampler draws from. [R, V] -> [R, V] float32."""
    scaled = logits.float() / batch.temperatures
    least = thresholds(logits, _block_top(logits), batch)
    return scaled if least is None else scaled.masked_fill_(scaled < least.unsqueeze(1), -torch.inf)


def probabilities(logits: Tensor, batch: SamplingBatch) -> np.ndarray:
    """[R, V] -> [R, V] float64; each row sums to 1 but for rounding."""
    result: np.ndarray = scaled_logits(logits, batch).double().softmax(1).cpu().numpy()
    return result


def _block_top(logits: Tensor) -> Tensor:
    """Largest logit of each 64 consecutive ids, [R, V] -> [R, ceil(V / 64)] float32."""
    missing = -logits.shape[1] % BLOCK
    return torch.nn.functional.pad(logits.float(), (0, missing), value=-torch.inf).unflatten(1, (-1, BLOCK)).amax(2)
