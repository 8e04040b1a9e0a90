"""The scores of a slice of the vocabulary, for one draw."""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire_core.engine.sampling.triton_kernels.noise import NOISE_BLOCK, gumbel_of_blocks

NONE = tl.constexpr(0x7FFFFFFF)
"""In place of a token: there is none that can be drawn."""
SPOILT = tl.constexpr(-1)
"""In place of a token: a logit is NaN or infinite."""
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def slice_scores(logits, row_stride, vocabulary, draws, room, least, row, draw, part,
                 SLICE: tl.constexpr, FILTERED: tl.constexpr):  # fmt: skip
    """Scores the tokens of slice `part` of a row for a draw; for the arguments see `draw.best_of_slices`.

    Returns token ids int32, z / T and z / T + g float32, -inf beyond the vocabulary, each [SLICE / 64, 64], and whether
    the slice is spoilt, int32. Greedy draws have T = 1 and g = 0. FILTERED: scores of tokens below
    `least`, float32 [room], are -inf.
    """
    seed, position = tl.load(draws + room + draw), tl.load(draws + 2 * room + draw)
    temperature = tl.load(draws + 3 * room + draw).to(tl.int32).to(tl.float32, bitcast=True)
    BLOCKS: tl.constexpr = SLICE // NOISE_BLOCK
    token_id = part * SLICE + tl.arange(0, BLOCKS)[:, None] * NOISE_BLOCK + tl.arange(0, NOISE_BLOCK)[None, :]
    z = tl.load(logits + row * row_stride + token_id, mask=token_id < vocabulary, other=-INFINITY).to(tl.float32)
    spoilt = tl.max(tl.max(((z != z) | (z == INFINITY)).to(tl.int32), 1), 0)
    if temperature > 0:
        scaled = tl.div_rn(z, tl.zeros_like(z) + temperature)
        score = scaled + gumbel_of_blocks(part * BLOCKS, position, seed, BLOCKS)
    else:
        scaled = z
        score = z
    if FILTERED:
        score = tl.where(scaled < tl.load(least + draw), -INFINITY, score)
    return token_id, scaled, score, spoilt


@triton.jit
def best_token(score, token_id):
    """The best score of a tile, and the lowest id that has it; NONE if it is -inf."""
    best = tl.max(tl.max(score, 1), 0)
    tied = tl.where((score == best) & (score > -INFINITY), token_id, NONE)
    return best, tl.min(tl.min(tied, 1), 0)
