"""Writes keys and values into the KV cache, by slot; in fused layers together with head norms and rotation."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from speculative_engine.model.cuda.kernels.attention import block_of
from speculative_engine.model.cuda.kernels.numbers import narrowed, widened

_OPTIONS: dict[str, Any] = {"num_warps": 1, "enable_fp_fusion": False}


@triton.jit
def store_pair(key, value, keys, values, key_at, value_at, key_real, value_real):
    """Stores a key and a value, float32.

    Attention multiplies values by weights of zero where a row does not see them, which must give zero. So a value that
    is not finite is stored as zero, and its key as NaN, which spoils the rows that see it and no others.
    """
    finite = (value == value) & (tl.abs(value) < float("inf"))
    spoilt = tl.max(tl.where(value_real & (finite == 0), 1, 0), 0) > 0
    tl.store(keys + key_at, narrowed(tl.where(spoilt, float("nan"), key), keys.dtype.element_ty), mask=key_real)
    tl.store(values + value_at, narrowed(tl.where(finite, value, 0.0), values.dtype.element_ty), mask=value_real)


@triton.jit
def write_kernel(
    new_keys,
    new_values,
    keys,
    values,
    slots,
    new_key_row,
    new_key_head,
    new_value_row,
    new_value_head,
    key_slot,
    value_slot,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
):
    """One program a row and a key-value head; see `write_keys`."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    slot = tl.load(slots + row)
    dim = tl.arange(0, BLOCK_DIM)
    value_dim = tl.arange(0, BLOCK_VALUE)
    key = tl.load(new_keys + row * new_key_row + head * new_key_head + dim, mask=dim < DIM, other=0.0)
    value = tl.load(
        new_values + row * new_value_row + head * new_value_head + value_dim, mask=value_dim < VALUE_DIM, other=0.0
    )
    store_pair(
        widened(key),
        widened(value),
        keys,
        values,
        slot * key_slot + head * DIM + dim,
        slot * value_slot + head * VALUE_DIM + value_dim,
        dim < DIM,
        value_dim < VALUE_DIM,
    )


def write_keys(new_keys: Tensor, new_values: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Writes keys and values of rows, [kv_heads, rows, dim] each, to slots, int64 [rows], of a layer's `keys` and
    `values` [slots, kv_heads, dim]. Elements of a head are adjacent in all of them."""
    kv_heads, rows, dim = new_keys.shape
    value_dim = new_values.shape[2]
    write_kernel[rows, kv_heads](
        new_keys,
        new_values,
        keys,
        values,
        slots,
        new_keys.stride(1),
        new_keys.stride(0),
        new_values.stride(1),
        new_values.stride(0),
        keys.stride(0),
        values.stride(0),
        DIM=dim,
        VALUE_DIM=value_dim,
        BLOCK_DIM=block_of(dim),
        BLOCK_VALUE=block_of(value_dim),
        **_OPTIONS,
    )


@triton.jit
def turned(head, cosines, sines, norm, dim, eps, DIM: tl.constexpr, NORMED: tl.constexpr, OFFSET: tl.constexpr):
    """The elements `dim` of a rotated head, float32. head, cosines, sines, norm: where theirs begin."""
    half: tl.constexpr = DIM // 2
    other = tl.where(dim < half, dim + half, dim - half)
    real = dim < DIM
    own = widened(tl.load(head + dim, mask=real, other=0.0))
    opposite = widened(tl.load(head + other, mask=real, other=0.0))
    if NORMED:
        scale = 1.0 / tl.sqrt(tl.sum(own * own, 0) / DIM + eps)
        own = own * scale * (widened(tl.load(norm + dim, mask=real, other=0.0)) + OFFSET)
        opposite = opposite * scale * (widened(tl.load(norm + other, mask=real, other=0.0)) + OFFSET)
    cosine = widened(tl.load(cosines + dim, mask=real, other=0.0))
    sine = widened(tl.load(sines + dim, mask=real, other=0.0))
    return own * cosine + tl.where(dim < half, -opposite, opposite) * sine


@triton.jit
def rotate_kernel(
    projected,
    cosines,
    sines,
    query_norm,
    key_norm,
    query,
    keys,
    values,
    slots,
    eps,
    key_slot,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    NORMED: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """One program a row and a query or key head; see `rotate_and_write`."""
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    dim = tl.arange(0, BLOCK_DIM)
    own = projected + row * ((HEADS + 2 * KV_HEADS) * DIM)
    cosine, sine = cosines + row * DIM, sines + row * DIM
    if head < HEADS:
        found = turned(own + head * DIM, cosine, sine, query_norm, dim, eps, DIM, NORMED, OFFSET)
        tl.store(query + (row * HEADS + head) * DIM + dim, narrowed(found, query.dtype.element_ty), mask=dim < DIM)
    else:
        key = turned(own + head * DIM, cosine, sine, key_norm, dim, eps, DIM, NORMED, OFFSET)
        value = widened(tl.load(own + (head + KV_HEADS) * DIM + dim, mask=dim < DIM, other=0.0))
        at = tl.load(slots + row) * key_slot + (head - HEADS) * DIM + dim
        store_pair(key, value, keys, values, at, at, dim < DIM, dim < DIM)


def rotate_and_write(
    projected: Tensor,
    cosines: Tensor,
    sines: Tensor,
    head_norms: tuple[Tensor, Tensor, float, float] | None,
    keys: Tensor,
    values: Tensor,
    slots: Tensor,
) -> Tensor:
    """Rotates queries and keys, and writes keys and values to slots, int64 [rows]; returns queries [rows, heads, dim].

    projected [rows, (heads + 2 kv_heads) dim]: queries, keys and values. cosines, sines [rows, dim]. head_norms: weights
    [dim] of the norms of query heads and of key heads, epsilon, and what is added to the weights; None for no norms.
    keys, values: a layer's, [slots, kv_heads, dim], with the same strides.
    """
    rows = len(projected)
    _, kv_heads, dim = keys.shape
    heads = projected.shape[1] // dim - 2 * kv_heads
    query = torch.empty(rows, heads, dim, dtype=projected.dtype, device=projected.device)
    query_norm, key_norm, eps, offset = head_norms or (projected, projected, 0.0, 0.0)
    rotate_kernel[rows, heads + kv_heads](
        projected,
        cosines,
        sines,
        query_norm,
        key_norm,
        query,
        keys,
        values,
        slots,
        eps,
        keys.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK_DIM=block_of(dim),
        NORMED=head_norms is not None,
        OFFSET=offset,
        **_OPTIONS,
    )
    return query
