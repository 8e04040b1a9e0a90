"""Attention for bucketed batches: over committed tokens and over the step's own rows, merged."""

from __future__ import annotations

from torch import Tensor

from speculative_engine.model.attention import varlen_attention
from speculative_engine.model.attention.split_attention import attend_seen, merge
from speculative_engine.model.cuda.bucketed_batch import BucketedBatch


def attend_bucket(
    batch: BucketedBatch,
    query: Tensor,
    new: tuple[Tensor, Tensor],
    stored: tuple[Tensor, Tensor],
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Computes each row's attention to what it sees; float32 [rows, heads, value dim].

    query [heads, rows, key dim]; new: keys and values of the rows themselves, [kv_heads, rows, dim] each; stored: keys
    and values of all slots, [kv_heads, slots, dim] each. Sinks [heads] take probability but have no value.
    """
    if window is not None and window >= sum(batch.bucket):
        window = None  # longer than any sequence
    keys, values = (each.index_select(1, batch.key_slots) for each in stored)
    if varlen_attention.fits(keys, values, window, softcap):
        committed = varlen_attention.attend_ranges(query, keys, values, *batch.ranges(), batch.empty(), scaling)
    else:
        committed = attend_seen(query, keys, values, batch.seen(window), scaling, softcap)
    return merge([committed, attend_seen(query, *new, batch.seen_rows(window), scaling, softcap)], sinks)
