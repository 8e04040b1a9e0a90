"""Writes keys and values into the KV cache, by slot; in fused layers together with head norms and rotation.

Those of 8 bits are rounded as `kernels/kv_rows.py` does it, to the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwire_core.engine.kernels.kv_rows import elements
from draftwire_core.engine.model.cuda.kernels.attention import block_of
from draftwire_core.engine.model.cuda.kernels.numbers import narrowed, widened
from draftwire_core.engine.model.cuda.kernels.scaled_rows import EIGHT_BITS, scales_of, store_scaled

_MOST_TOGETHER = 8
"""Heads of a program."""
_OPTIONS: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}


@triton.jit
def store_pairs(
    key,
    value,
    keys,
    values,
    key_scales,
    value_scales,
    key_slot,
    value_slot,
    head,
    key_real,
    value_real,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
):
    """Stores keys and values of heads, float32 [heads, block]. key_slot, value_slot: where the slot begins. head
    [heads, 1]: numbers of the key-value heads.

    Attention multiplies values by weights of zero where a row does not see them, which must give zero. So a value that
    is not finite is stored as zero, and its key as NaN, which spoils the rows that see it and no others.
    """
    finite = tl.abs(value) < float("inf")
    spoilt = tl.max(tl.where(value_real & (finite == 0), 1, 0), 1)[:, None] > 0
    store_rows(tl.where(spoilt, float("nan"), key), keys, key_scales, key_slot, head, key_real, DIM)
    store_rows(tl.where(finite, value, 0.0), values, value_scales, value_slot, head, value_real, VALUE_DIM)


@triton.jit
def store_rows(rows, stored, scales, slot, head, real, DIM: tl.constexpr):
    """Stores rows of heads, float32 [heads, block], in the type of `stored`; see `store_pairs`."""
    if stored.dtype.element_ty == EIGHT_BITS:
        store_scaled(rows, stored, scales, slot, head, real, DIM)
    else:
        at = slot + head * DIM + tl.arange(0, rows.shape[1])[None, :]
        tl.store(stored + at, narrowed(rows, stored.dtype.element_ty), mask=real)


@triton.jit
def write_kernel(
    new_keys,
    new_values,
    keys,
    values,
    key_scales,
    value_scales,
    slots,
    new_key_row,
    new_key_head,
    new_value_row,
    new_value_head,
    key_slot,
    value_slot,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_VALUE: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """One program a row and some key-value heads; see `write_keys`."""
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER))[:, None]
    slot = tl.load(slots + row)
    dim = tl.arange(0, BLOCK_DIM)[None, :]
    value_dim = tl.arange(0, BLOCK_VALUE)[None, :]
    key_real, value_real = (head < KV_HEADS) & (dim < DIM), (head < KV_HEADS) & (value_dim < VALUE_DIM)
    key = tl.load(new_keys + row * new_key_row + head * new_key_head + dim, mask=key_real, other=0.0)
    value = tl.load(new_values + row * new_value_row + head * new_value_head + value_dim, mask=value_real, other=0.0)
    store_pairs(
        widened(key),
        widened(value),
        keys,
        values,
        key_scales,
        value_scales,
        slot * key_slot,
        slot * value_slot,
        head,
        key_real,
        value_real,
        DIM,
        VALUE_DIM,
    )


def write_keys(new_keys: Tensor, new_values: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Writes keys and values of rows, [kv_heads, rows, dim] each, to slots, int64 [rows], of a layer's `keys` and
    `values` [slots, kv_heads, dim], or of 8 bits. Elements of a head are adjacent in all of them."""
    kv_heads, rows, dim = new_keys.shape
    value_dim = new_values.shape[2]
    together = _heads_together(kv_heads)
    write_kernel[rows, -(-kv_heads // together)](
        new_keys,
        new_values,
        keys,
        values,
        scales_of(keys),
        scales_of(values),
        slots,
        new_keys.stride(1),
        new_keys.stride(0),
        new_values.stride(1),
        new_values.stride(0),
        keys.stride(0),
        values.stride(0),
        KV_HEADS=kv_heads,
        DIM=dim,
        VALUE_DIM=value_dim,
        BLOCK_DIM=block_of(dim),
        BLOCK_VALUE=block_of(value_dim),
        TOGETHER=together,
        **_OPTIONS,
    )


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
    key_scales,
    value_scales,
    slots,
    eps,
    key_slot,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    TOGETHER: tl.constexpr,
    NORMED: tl.constexpr,
    OFFSET: tl.constexpr,
):
    """One program a row and some of its query and key heads; see `rotate_and_write`."""
    half: tl.constexpr = DIM // 2
    row = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER))[:, None]
    dim = tl.arange(0, BLOCK_DIM)[None, :]
    other = tl.where(dim < half, dim + half, dim - half)
    whole, asks = dim < DIM, head < HEADS
    kept = (head >= HEADS) & (head < HEADS + KV_HEADS) & whole
    real = (head < HEADS + KV_HEADS) & whole
    own = projected + row * ((HEADS + 2 * KV_HEADS) * DIM) + head * DIM
    numbers = widened(tl.load(own + dim, mask=real, other=0.0))
    opposite = widened(tl.load(own + other, mask=real, other=0.0))
    if NORMED:
        scale = (1.0 / tl.sqrt(tl.sum(numbers * numbers, 1) / DIM + eps))[:, None]
        numbers *= scale * (norm_of(query_norm, key_norm, asks, dim, real) + OFFSET)
        opposite *= scale * (norm_of(query_norm, key_norm, asks, other, real) + OFFSET)
    cosine = widened(tl.load(cosines + row * DIM + dim, mask=whole, other=0.0))
    sine = widened(tl.load(sines + row * DIM + dim, mask=whole, other=0.0))
    turned = numbers * cosine + tl.where(dim < half, -opposite, opposite) * sine
    tl.store(query + (row * HEADS + head) * DIM + dim, narrowed(turned, query.dtype.element_ty), mask=asks & whole)
    value = widened(tl.load(own + KV_HEADS * DIM + dim, mask=kept, other=0.0))
    slot = tl.load(slots + row) * key_slot
    store_pairs(turned, value, keys, values, key_scales, value_scales, slot, slot, head - HEADS, kept, kept, DIM, DIM)


@triton.jit
def norm_of(query_norm, key_norm, asks, dim, real):
    """The weights of heads' norms, of query heads where `asks`."""
    of_queries = widened(tl.load(query_norm + dim, mask=real & asks, other=0.0))
    return of_queries + widened(tl.load(key_norm + dim, mask=real & (asks == 0), other=0.0))


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

    projected [rows, (heads + 2 kv_heads) dim]: queries, keys and values. cosines, sines [rows, dim]. head_norms:
    weights [dim] of the norms of query heads and of key heads, epsilon, and what is added to the weights; or None.
    keys, values: a layer's, [slots, kv_heads, dim], or of 8 bits, with the same strides.
    """
    rows = len(projected)
    kv_heads, dim = keys.shape[1], elements(keys)
    heads = projected.shape[1] // dim - 2 * kv_heads
    query = torch.empty(rows, heads, dim, dtype=projected.dtype, device=projected.device)
    query_norm, key_norm, eps, offset = head_norms or (projected, projected, 0.0, 0.0)
    together = _heads_together(heads + kv_heads)
    rotate_kernel[rows, -(-(heads + kv_heads) // together)](
        projected,
        cosines,
        sines,
        query_norm,
        key_norm,
        query,
        keys,
        values,
        scales_of(keys),
        scales_of(values),
        slots,
        eps,
        keys.stride(0),
        HEADS=heads,
        KV_HEADS=kv_heads,
        DIM=dim,
        BLOCK_DIM=block_of(dim),
        TOGETHER=together,
        NORMED=head_norms is not None,
        OFFSET=offset,
        **_OPTIONS,
    )
    return query


def _heads_together(heads: int) -> int:
    return int(min(_MOST_TOGETHER, triton.next_power_of_2(heads)))
