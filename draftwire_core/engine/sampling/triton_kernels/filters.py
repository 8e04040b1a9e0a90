"""The filters top-k, top-p and min-p as the least scaled logit that a draw keeps; see `sampling.token_filters`.

A threshold is a value of a row: the largest one such that the tokens at or above it are at least k, or reach a share of
the probability. It is found bit by bit, by as many passes over the row as a float32 has bits. Sums are of integers, so
it does not depend on their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire_core.engine.sampling import token_filters
from draftwire_core.engine.sampling.triton_kernels.slice_scores import INFINITY

_UNIT = tl.constexpr(2.0**token_filters.MASS_BITS)
"""Units of probability mass, as `token_filters.mass_of` has them."""


@triton.jit
def keys_of(values):
    """int64 numbers from 0 to 2^32 - 1 in the order of the float32 values."""
    bits = (values + 0.0).to(tl.int32, bitcast=True).to(tl.int64)  # without a negative zero
    return tl.where(bits >= 0, bits + 0x80000000, -1 - bits)


@triton.jit
def value_of(key):
    """The float32 value of a key."""
    return tl.where(key >= 0x80000000, key - 0x80000000, -1 - key).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def scaled_at(logits, begin, vocabulary, temperature, BLOCK: tl.constexpr):
    """The scaled logits of tokens from `begin` on, float32 [BLOCK], -inf beyond the vocabulary."""
    at = begin + tl.arange(0, BLOCK)
    z = tl.load(logits + at, mask=at < vocabulary, other=-INFINITY).to(tl.float32)
    return tl.div_rn(z, tl.zeros_like(z) + temperature)


@triton.jit
def measured(logits, vocabulary, temperature, top, least, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """The mass, or the number if COUNTED, of the tokens whose keys are at least `least`, int64."""
    total = tl.zeros([BLOCK], tl.int64)
    for begin in range(0, vocabulary, BLOCK):
        scaled = scaled_at(logits, begin, vocabulary, temperature, BLOCK)
        if COUNTED:
            measure = (scaled > -INFINITY).to(tl.int64)
        else:
            measure = (tl.exp(scaled - top) * _UNIT).to(tl.int64)
        total += tl.where(keys_of(scaled) >= least, measure, 0)
    return tl.sum(total, 0)


@triton.jit
def largest_key(logits, vocabulary, temperature, top, target, COUNTED: tl.constexpr, BLOCK: tl.constexpr):
    """The largest key such that the tokens at or above it measure at least `target`, float64."""
    key = tl.zeros([], tl.int64)
    for bit in range(32):
        tried = key + (tl.full([], 1, tl.int64) << (31 - bit))
        found = measured(logits, vocabulary, temperature, top, tried, COUNTED, BLOCK)
        key = tl.where(found.to(tl.float64) >= target, tried, key)
    return key


@triton.jit(do_not_specialize=["room"])
def least_kept(logits, row_stride, vocabulary, draws, room, least, BLOCK: tl.constexpr):
    """Finds the least scaled logit that a draw keeps, -inf if it keeps all. One program a draw.

    For the first arguments see `draw.best_of_slices`; draws with the numbers of filters. least: float32 [room].
    """
    draw = tl.program_id(0)
    row = tl.load(draws + draw)
    temperature = tl.load(draws + 3 * room + draw).to(tl.int32).to(tl.float32, bitcast=True)
    k = tl.load(draws + 6 * room + draw)
    p = tl.load(draws + 7 * room + draw).to(tl.float64, bitcast=True)
    least_share = tl.load(draws + 8 * room + draw)
    filtered = (k > 0) | (p > 0) | (least_share != 0)
    kept = tl.full([], -INFINITY, tl.float32)
    if (row >= 0) & (temperature > 0) & filtered:
        mine = logits + row * row_stride
        tops = tl.full([BLOCK], -INFINITY, tl.float32)
        for begin in range(0, vocabulary, BLOCK):
            tops = tl.maximum(tops, scaled_at(mine, begin, vocabulary, temperature, BLOCK))
        top = tl.max(tops, 0)
        key = tl.zeros([], tl.int64)
        if (k > 0) & (k < vocabulary):
            key = largest_key(mine, vocabulary, temperature, top, k.to(tl.float64), True, BLOCK)
        if p > 0:
            total = measured(mine, vocabulary, temperature, top, key, False, BLOCK)
            target = p * total.to(tl.float64)
            key = tl.maximum(key, largest_key(mine, vocabulary, temperature, top, target, False, BLOCK))
        if key > 0:
            kept = value_of(key)
        if least_share != 0:
            kept = tl.maximum(kept, top + least_share.to(tl.int32).to(tl.float32, bitcast=True))
    tl.store(least + draw, kept)
