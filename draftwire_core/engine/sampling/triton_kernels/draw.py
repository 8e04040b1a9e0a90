"""Draws the tokens of a step in two kernels, and marks the rows on their path.

The first scores every token of a row, a slice of the vocabulary at a time; the second finds the best of each row and
follows the drawn tokens. Nothing depends on the number of rows, so a row's token does not either.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire_core.engine.sampling.triton_kernels.slice_scores import INFINITY, NONE, SPOILT, best_token, slice_scores


@triton.jit(do_not_specialize=["room"])  # compiled once, not for each number of rows
def best_of_slices(logits, row_stride, vocabulary, draws, room, least, scores, token_ids,
                   SLICE: tl.constexpr, FILTERED: tl.constexpr):  # fmt: skip
    """Finds the best token of a slice of the vocabulary, by (z / T + g, lowest id). One program a slice and draw.

    logits: rows of bfloat16, float16 or float32. draws: int64 [numbers, room], see `StepDraws`. least, FILTERED: see
    `slice_scores`. scores float32 and
    token_ids int32 [room, slices]: the results; those of draws without a row stay as they are.
    """
    draw, part = tl.program_id(1), tl.program_id(0)
    row = tl.load(draws + draw)
    if row >= 0:
        token_id, _, score, spoilt = slice_scores(
            logits, row_stride, vocabulary, draws, room, least, row, draw, part, SLICE, FILTERED
        )
        best, token_id = best_token(score, token_id)
        at = draw * tl.num_programs(0) + part
        tl.store(scores + at, best)
        tl.store(token_ids + at, tl.where(spoilt > 0, SPOILT, token_id))


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
    best = tl.full([ROWS], -INFINITY, tl.float32)
    token = tl.full([ROWS], NONE, tl.int32)
    spoilt = tl.zeros([ROWS], tl.int32)
    for begin in range(0, slices, SLICES):
        part = begin + tl.arange(0, SLICES)
        at = draw[:, None] * slices + part[None, :]
        known = is_drawn[:, None] & (part < slices)[None, :]
        score = tl.load(scores + at, mask=known, other=-INFINITY)
        token_id = tl.load(token_ids + at, mask=known, other=NONE)
        spoilt |= (tl.min(token_id, 1) == SPOILT).to(tl.int32)
        top = tl.max(score, 1)
        first = tl.min(tl.where(score == top[:, None], token_id, NONE), 1)
        # Slices come in order of their ids, so an equal score of a later one is of a higher id.
        token = tl.where(top > best, first, token)
        best = tl.maximum(best, top)
    token = tl.where((spoilt > 0) | (token == NONE), -1, token)

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
