"""Attention of SGLang's CPU backend, row by row: a row's sums depend on its own context alone."""

from __future__ import annotations

from typing import Any

import torch


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
    """query: [heads, size]. keys, values: [context, KV heads, size]. Returns [heads, size]."""
    groups = query.shape[0] // keys.shape[1]
    keys = keys.float().repeat_interleave(groups, dim=1)
    values = values.float().repeat_interleave(groups, dim=1)
    scores = (query.float()[None] * keys).sum(-1) * scaling
    weights = torch.softmax(scores, dim=0)
    return (weights[..., None] * values).sum(0).to(query.dtype)


def decode_attention(
    q: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key_scale: float,
    value_scale: float,
    out: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    cache_loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
    *_: Any,
) -> None:
    """Writes keys and values, then lets each request's row see its whole sequence."""
    if k is not None and v is not None:
        key_buffer[cache_loc] = k.view(-1, *key_buffer.shape[1:]).to(key_buffer.dtype)
        value_buffer[cache_loc] = v.view(-1, *value_buffer.shape[1:]).to(value_buffer.dtype)
    for row, (request, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        slots = req_to_token[request, :length].long()
        out[row] = _attend(q[row], key_buffer[slots], value_buffer[slots], scaling)


def extend_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    key_buffer: torch.Tensor,
    value_buffer: torch.Tensor,
    key_scale: float,
    value_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_extend_len: int,
    scaling: float,
    logit_cap: float,
    is_cross_attention: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None = None,
    is_causal: bool = True,
) -> None:
    """Lets each new row see what was there before, and of the new rows those before it, or those of its mask."""
    masked = 0
    lengths = zip(
        req_pool_indices.tolist(), seq_lens.tolist(), extend_seq_lens.tolist(), extend_start_loc.tolist(), strict=True
    )
    for request, length, new, start in lengths:
        slots = req_to_token[request, :length].long()
        before = length - new
        mask = torch.ones(new, new, dtype=torch.bool).tril()
        if tree_mask is not None:
            mask = tree_mask[masked : masked + new * new].view(new, new).bool()
            masked += new * new
        for row in range(new):
            seen = torch.cat([slots[:before], slots[before:][mask[row]]])
            out[start + row] = _attend(q[start + row], key_buffer[seen], value_buffer[seen], scaling)
