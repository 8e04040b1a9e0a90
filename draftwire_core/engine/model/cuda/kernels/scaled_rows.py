"""Keys and values of 8 bits in the KV cache: rounding them, and reading them back.

The rows are those of `kernels/kv_rows.py`: the quants of a head, then a bfloat16 scale for each 32 of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from draftwire_core.engine.kernels.kv_rows import BLOCK, STORED
from draftwire_core.engine.model.cuda.kernels.numbers import narrowed, widened

EIGHT_BITS = tl.constexpr(tl.int8)
_BLOCK = tl.constexpr(BLOCK)
_LARGEST = tl.constexpr(127.0)
_LEAST_SCALE = tl.constexpr(torch.finfo(torch.float32).smallest_normal)
_TO_WHOLE = tl.constexpr(1.5 * 2.0**23)
"""Added to a number below 2^22 in magnitude and subtracted again, it leaves the nearest whole number, of two the even
one."""


def scales_of(rows: Tensor) -> Tensor:
    """The tensor in which kernels find the scales of rows of 8 bits, by half the places of their bytes; of others the
    rows, as a placeholder."""
    return rows.view(torch.bfloat16) if rows.dtype == STORED else rows


@triton.jit
def store_scaled(rows, stored, scales, slot, head, real, DIM: tl.constexpr):
    """Rounds rows of heads, float32 [heads, block], and stores them, with their scales. slot: where the slot begins, in
    bytes. head [heads, 1]: places in the slot. real [heads, block]: the elements to store."""
    HEADS: tl.constexpr = rows.shape[0]
    BLOCKS: tl.constexpr = rows.shape[1] // _BLOCK
    width: tl.constexpr = DIM + DIM // _BLOCK * 2
    blocks = tl.reshape(tl.where(real, rows, 0.0), [HEADS, BLOCKS, _BLOCK])
    finite = tl.max(tl.where(tl.abs(blocks) < float("inf"), 0, 1), 2) == 0
    largest = tl.max(tl.where(finite[:, :, None], tl.abs(blocks), 0.0), 2)
    scale = widened(narrowed(tl.div_rn(largest, tl.full([HEADS, BLOCKS], _LARGEST, tl.float32)), tl.bfloat16))
    scale = tl.where(scale < _LEAST_SCALE, 0.0, scale)
    inverse = tl.div_rn(tl.full([HEADS, BLOCKS], 1.0, tl.float32), tl.where(scale > 0, scale, 1.0))
    inverse = tl.where(finite & (scale > 0), inverse, 0.0)
    numbers = tl.where(finite[:, :, None], blocks, 0.0) * inverse[:, :, None]
    quants = ((numbers + _TO_WHOLE) - _TO_WHOLE).to(EIGHT_BITS)
    at = tl.arange(0, rows.shape[1])[None, :]
    tl.store(stored + slot + head * width + at, tl.reshape(quants, [HEADS, BLOCKS * _BLOCK]), mask=real)
    block = tl.arange(0, BLOCKS)[None, :]
    tl.store(
        scales + slot // 2 + head * (width // 2) + DIM // 2 + block,
        narrowed(tl.where(finite, scale, float("nan")), tl.bfloat16),
        mask=(tl.max(tl.where(real, 1, 0), 1)[:, None] > 0) & (block < DIM // _BLOCK),
    )


@triton.jit
def read_scaled(stored, scales, slot, head, dtype: tl.constexpr, DIM: tl.constexpr, SIZE: tl.constexpr):
    """The values of rows of 8 bits in `dtype`, rounded to it: [slots, SIZE], zeros beyond DIM. slot [slots, 1]: where
    slots begin, in bytes. head: the place in a slot."""
    SLOTS: tl.constexpr = slot.shape[0]
    BLOCKS: tl.constexpr = SIZE // _BLOCK
    width: tl.constexpr = DIM + DIM // _BLOCK * 2
    dim = tl.arange(0, SIZE)[None, :]
    block = tl.arange(0, BLOCKS)[None, :]
    quants = tl.load(stored + slot + head * width + dim, mask=dim < DIM, other=0)
    scale = tl.load(scales + slot // 2 + head * (width // 2) + DIM // 2 + block, mask=block < DIM // _BLOCK, other=0.0)
    numbers = tl.reshape(quants.to(tl.float32), [SLOTS, BLOCKS, _BLOCK]) * widened(scale)[:, :, None]
    return narrowed(tl.reshape(numbers, [SLOTS, SIZE]), dtype)
