"""Attention in two parts, over committed keys and over the rows of the step, merged by their log-sum-exps.

All shapes follow from those of the tensors and nothing synchronises with the device, so the calls can be captured as a
CUDA graph. The order of sums depends on the rest of the step: a row is reproducible within rounding, not to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Attention of rows over some of their keys."""

    out: Tensor
    """[rows, heads, value dim] float32; 0 where a row sees none of the keys."""
    weight: Tensor
    """[rows, heads] float32: log of the sum of exponentials of the scores; -inf where a row sees none of the keys."""


def attend_seen(
    query: Tensor, keys: Tensor, values: Tensor, seen: Tensor, scaling: float, softcap: float | None = None
) -> Part:
    """Computes each row's attention to the keys that it sees, by a masked product over all keys.

    query [heads, rows, key dim]; keys [kv_heads, n, key dim], values [kv_heads, n, value dim]; seen [rows, n] bool. A
    value that is not finite makes NaN of the rows that see it, and of no others.
    """
    heads, rows, dim = query.shape
    kv_heads = len(keys)
    grouped = query.float().mul(scaling).reshape(kv_heads, heads // kv_heads * rows, dim)
    scores = torch.bmm(grouped, keys.float().transpose(1, 2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.view(kv_heads, heads // kv_heads, rows, -1).masked_fill(~seen, -torch.inf)
    top = scores.amax(-1, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    weights = torch.exp(scores - top)
    total = weights.sum(-1, keepdim=True)
    wide = values.float()
    finite = wide.isfinite()
    # A weight of 0 times a value that is not finite would be NaN.
    summed = _weighted(weights.view(kv_heads, -1, seen.shape[1]), torch.where(finite, wide, 0.0))
    spoilt = torch.mm(seen.float(), (~finite.all(-1)).any(0).float().unsqueeze(1)) > 0
    summed = summed.view(kv_heads, heads // kv_heads, rows, -1) / torch.where(total > 0, total, 1.0)
    out = summed.reshape(heads, rows, -1).transpose(0, 1).masked_fill(spoilt.unsqueeze(1), torch.nan)
    return Part(out, (top + total.log()).reshape(heads, rows).t())


def _weighted(weights: Tensor, values: Tensor) -> Tensor:
    """The sums of values by weights: [kv_heads, m, n] times [kv_heads, n, dim].

    A single value is not a matrix product: on GPUs torch compiles an outer product with Triton at its first call, which
    needs a C compiler at run time.
    """
    return weights * values if weights.shape[-1] == 1 else torch.bmm(weights, values)


def merge(parts: list[Part], sinks: Tensor | None = None) -> Tensor:
    """Merges parts into the attention over all their keys, float32 [rows, heads, value dim].

    sinks [heads]: scores that take probability but have no value. Every row must see a key in some part.
    """
    weights = torch.stack([part.weight for part in parts])
    if sinks is not None:
        weights = torch.cat([weights, sinks.float().expand_as(weights[:1])])
    shares = (weights - weights.amax(0)).exp()
    outs = torch.stack([part.out for part in parts])
    return (outs * shares[: len(parts)].unsqueeze(-1)).sum(0) / shares.sum(0).unsqueeze(-1)
