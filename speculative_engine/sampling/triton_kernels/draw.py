"""Draws the tokens of a step in two kernels, and marks the rows on their path.

The first scores every token of a row, a slice of the vocabulary at a time; the second finds the best of each row and
follows the drawn tokens. Nothing depends on the number of rows, so a row's token does not either.
"""

from __future__ import annotations

import triton
import triton.language as tl

from speculative_engine.sampling.triton_kernels.noise import NOISE_BLOCK, gumbel_of_blocks

_NONE = tl.constexpr(0x7FFFFFFF)
"""In place of a token: there is none that can be drawn."""
_SPOILT = tl.constexpr(-1)
"""In place of a token: a logit is NaN or infinite."""
_INFINITY = tl.constexpr(float("inf"))


@triton.jit(do_not_specialize=["room"])  # compiled once, not for each number of rows
def best_of_slices(logits, row_stride, vocabulary, draws, room, scores, token_ids, SLICE: tl.constexpr):
    """Finds the best token of a slice of the vocabulary, by (z / T + g, lowest id). One program a slice and draw.

    logits: rows of bfloat16, float16 or float32. draws: int64 [6, room], see `draw_numbers`. scores float32 and
    token_ids int32 [room, slices]: the results; those of draws without a row stay as they are.
    """
    draw, part = tl.program_id(1), tl.program_id(0)
    row = tl.load(draws + draw)
    if row >= 0:
        seed, position = tl.load(draws + room + draw), tl.load(draws + 2 * room + draw)
        temperature = tl.load(draws + 3 * room + draw).to(tl.int32).to(tl.float32, bitcast=True)
        BLOCKS: tl.constexpr = SLICE // NOISE_BLOCK
        block = part * BLOCKS
        offset = tl.arange(0, BLOCKS)[:, None] * NOISE_BLOCK + tl.arange(0, NOISE_BLOCK)[None, :]
        token_id = part * SLICE + offset
        inside = token_id < vocabulary
        z = tl.load(logits + row * row_stride + token_id, mask=inside, other=-_INFINITY).to(tl.float32)
        spoilt = tl.max(tl.max(((z != z) | (z == _INFINITY)).to(tl.int32), 1), 0)
        if temperature > 0:
            score = tl.div_rn(z, tl.zeros_like(z) + temperature)
            score += gumbel_of_blocks(block, position, seed, BLOCKS)
        else:
            score = z
        best = tl.max(tl.max(score, 1), 0)
        token_id = tl.where((score == best) & (score > -_INFINITY), token_id, _NONE)
        token_id = tl.min(tl.min(token_id, 1), 0)
        at = draw * tl.num_programs(0) + part
        tl.store(scores + at, best)
        tl.store(token_ids + at, tl.where(spoilt > 0, _SPOILT, token_id))


@triton.jit(do_not_specialize=["room", "slices"])
def follow_best(draws, room, scores, token_ids, slices, drawn, ROWS: tl.constexpr, SLICES: tl.constexpr,
                ROUNDS: tl.constexpr):  # fmt: skip
    """Finds the token of each draw, and whether it is on the path of the tokens. One program for all.

    draws, scores, token_ids: as for `best_of_slices`. drawn: int32 [2, room], the results: tokens, -1 where there is
    none, and 1 for those on the path. ROWS: a power of two, at least `room`; SLICES: of that many at a time; ROUNDS: at
    least the logarithm of ROWS to the base 2.
    """
    draw = tl.arange(0, ROWS)
    inside = draw < room
    is_drawn = tl.load(draws + draw, mask=inside, other=-1) >= 0
    best = tl.full([ROWS], -_INFINITY, tl.float32)
    token = tl.full([ROWS], _NONE, tl.int32)
    spoilt = tl.zeros([ROWS], tl.int32)
    for begin in range(0, slices, SLICES):
        part = begin + tl.arange(0, SLICES)
        at = draw[:, None] * slices + part[None, :]
        known = is_drawn[:, None] & (part < slices)[None, :]
        score = tl.load(scores + at, mask=known, other=-_INFINITY)
        token_id = tl.load(token_ids + at, mask=known, other=_NONE)
        spoilt |= (tl.min(token_id, 1) == _SPOILT).to(tl.int32)
        top = tl.max(score, 1)
        first = tl.min(tl.where(score == top[:, None], token_id, _NONE), 1)
        # Slices come in order of their ids, so an equal score of a later one is of a higher id.
        token = tl.where(top > best, first, token)
        best = tl.maximum(best, top)
    token = tl.where((spoilt > 0) | (token == _NONE), -1, token)

    own = tl.load(draws + 4 * room + draw, mask=inside, other=-1).to(tl.int32)
    parent = tl.load(draws + 5 * room + draw, mask=inside, other=0).to(tl.int32)
    parent = tl.where(inside, parent, draw)
    on_path = ((own == tl.gather(token, parent, 0)) | (parent == draw)).to(tl.int32)
    # As `acceptance.coupled.walk_on_device`: every round doubles the length of the paths checked.
    for _ in tl.static_range(ROUNDS):
        on_path &= tl.gather(on_path, parent, 0)
        parent = tl.gather(parent, parent, 0)
    tl.store(drawn + draw, token, mask=inside)
    tl.store(drawn + room + draw, on_path, mask=inside)
