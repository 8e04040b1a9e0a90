"""The noise of coupled sampling (`sampling.gumbel`) for GPUs, with the bits of the compiled sampler.

Only additions, multiplications and divisions that round to nearest, the logarithm included (`csrc/logarithm.h`): the
noise has the same bits on every device. Kernels that call these functions must be compiled without fusing products and
sums (`enable_fp_fusion=False`), which would round once in place of twice.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire_core.engine.sampling import gumbel, philox

NOISE_BLOCK = tl.constexpr(gumbel.NOISE_BLOCK)
_LANES = tl.constexpr(4)
"""Words of a call of Philox."""
_BLOCK_FIRST = tl.constexpr(gumbel.DOMAIN_BLOCK_FIRST)
_BLOCK_WINNER = tl.constexpr(gumbel.DOMAIN_BLOCK_WINNER)
_TOKEN = tl.constexpr(gumbel.DOMAIN_TOKEN)
_MULTIPLIER_0, _MULTIPLIER_1 = (tl.constexpr(each) for each in philox.MULTIPLIERS)
_KEY_STEP_0, _KEY_STEP_1 = (tl.constexpr(each) for each in philox.KEY_STEPS)
_ROUNDS = tl.constexpr(philox.ROUNDS)
_WINNER_SHIFT = tl.constexpr(32 - gumbel.NOISE_BLOCK_BITS)
_HALF_ROOT = tl.constexpr(0x3FE6A09E00000000)
"""The bits of sqrt(2) / 2, rounded, as a float64."""
_MANTISSA = tl.constexpr(0x000FFFFFFFFFFFFF)


@triton.jit
def logarithm(x):
    """The natural logarithm of positive, normal float64 numbers, by the operations of `csrc/logarithm.h`."""
    moved = x.to(tl.int64, bitcast=True) - _HALF_ROOT
    power = (moved >> 52).to(tl.float64)
    f = ((moved & _MANTISSA) + _HALF_ROOT).to(tl.float64, bitcast=True) - 1.0
    half_square = 0.5 * f * f
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    even = w * (3.999999999940941908e-1 + w * (2.222219843214978396e-1 + w * 1.531383769920937332e-1))
    odd = z * (
        6.666666666666735130e-1
        + w * (2.857142874366239149e-1 + w * (1.818357216161805012e-1 + w * 1.479819860510658591e-1))
    )
    return (
        s * (half_square + (even + odd))
        + power * 1.90821492927058770002e-10
        - half_square
        + f
        + power * 6.93147180369123816490e-01
    )


@triton.jit
def words(index, position, seed, DOMAIN: tl.constexpr, COUNT: tl.constexpr):
    """The words of Philox-4x32-10 of the counters (index .. index + COUNT / 4, position, 0, DOMAIN), uint32 [COUNT].

    index: int; position, seed: int64, the bits of a uint32 and a uint64.
    """
    c0 = (index + tl.arange(0, COUNT // _LANES)).to(tl.uint32)
    c1 = tl.zeros_like(c0) + position.to(tl.uint32)
    c2 = tl.zeros_like(c0)
    c3 = tl.zeros_like(c0) + DOMAIN
    k0 = seed.to(tl.uint32)
    k1 = (seed >> 32).to(tl.uint32)
    for _ in tl.static_range(_ROUNDS):
        left, right = tl.umulhi(c0, _MULTIPLIER_0), tl.umulhi(c2, _MULTIPLIER_1)
        c1, c3, c0, c2 = c2 * _MULTIPLIER_1, c0 * _MULTIPLIER_0, right ^ c1 ^ k0, left ^ c3 ^ k1
        k0, k1 = k0 + _KEY_STEP_0, k1 + _KEY_STEP_1
    return tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), [COUNT])


@triton.jit
def exponential(bits):
    """-log((x + 1/2) / 2^32) of 32-bit words, float64."""
    return -logarithm((bits.to(tl.float64) + 0.5) * 2.3283064365386963e-10)


@triton.jit
def gumbel_of_blocks(block, position, seed, BLOCKS: tl.constexpr):
    """The noise of all ids of the blocks `block` .. `block + BLOCKS`, float32 [BLOCKS, 64].

    block: int, a multiple of 4, as is BLOCKS; position, seed: as for `words`.
    """
    first = exponential(words(block // _LANES, position, seed, _BLOCK_FIRST, BLOCKS)) * 0.015625
    winner = words(block // _LANES, position, seed, _BLOCK_WINNER, BLOCKS) >> _WINNER_SHIFT
    bits = words(block * (NOISE_BLOCK // _LANES), position, seed, _TOKEN, BLOCKS * NOISE_BLOCK)
    waits = exponential(tl.reshape(bits, [BLOCKS, NOISE_BLOCK]))
    largest = (-logarithm(first)).to(tl.float32)[:, None]
    later = (-logarithm(first[:, None] + waits)).to(tl.float32)
    index = tl.arange(0, NOISE_BLOCK).to(tl.uint32)[None, :]
    return tl.where(index == winner[:, None], largest, tl.minimum(later, largest))
