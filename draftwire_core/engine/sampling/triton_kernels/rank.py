"""Finds the likeliest tokens of rows under the noise, for drafters, and their probabilities, in two kernels.

The tokens are exact. Probabilities are summed by slices in float32: they are within rounding of the reference's, and do
not depend on other rows.
"""

from __future__ import annotations

import triton
import triton.language as tl

from draftwire_core.engine.sampling.triton_kernels.slice_scores import INFINITY, NONE, SPOILT, best_token, slice_scores


@triton.jit(do_not_specialize=["room"])
def rank_slices(logits, row_stride, vocabulary, draws, room, least, scores, token_ids, tops, masses,
                SLICE: tl.constexpr, WIDTH: tl.constexpr, FILTERED: tl.constexpr):  # fmt: skip
    """Finds the WIDTH best tokens of a slice, best first. One program a slice and draw.

    For the first arguments see `draw.best_of_slices`. The results: scores float32 and token_ids int32 [room, slices,
    WIDTH]; tops and masses float32 [room, slices], the largest z / T and the sum of exp(z / T - top).
    """
    draw, part = tl.program_id(1), tl.program_id(0)
    row = tl.load(draws + draw)
    if row >= 0:
        token_id, scaled, score, spoilt = slice_scores(
            logits, row_stride, vocabulary, draws, room, least, row, draw, part, SLICE, FILTERED
        )
        at = draw * tl.num_programs(0) + part
        top = tl.max(tl.max(scaled, 1), 0)
        mass = tl.where(scaled > -INFINITY, tl.exp(scaled - top), 0.0)
        tl.store(tops + at, top)
        tl.store(masses + at, tl.sum(tl.sum(mass, 1), 0))
        for place in tl.static_range(WIDTH):
            best, found = best_token(score, token_id)
            tl.store(scores + at * WIDTH + place, best)
            tl.store(token_ids + at * WIDTH + place, tl.where(spoilt > 0, SPOILT, found))
            score = tl.where(token_id == found, -INFINITY, score)


@triton.jit(do_not_specialize=["room", "slices"])
def rank_rows(logits, row_stride, draws, room, scores, token_ids, tops, masses, slices, ranked,
              SLICES: tl.constexpr, RANKED: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """Finds the WIDTH best tokens of a draw, best first, among those of its slices. One program a draw.

    For most arguments see `rank_slices`. ranked: int32 [room, 2, WIDTH], the results: tokens, -1 where there are fewer,
    and the bits of their log-probabilities float32. SLICES, RANKED: powers of two, at least `slices`, and that times
    WIDTH.
    """
    draw = tl.program_id(0)
    row = tl.load(draws + draw)
    if row >= 0:
        part = tl.arange(0, SLICES)
        known = part < slices
        top_of_part = tl.load(tops + draw * slices + part, mask=known, other=-INFINITY)
        mass = tl.load(masses + draw * slices + part, mask=known, other=0.0)
        top = tl.max(top_of_part, 0)
        log_mass = tl.log(tl.sum(tl.where(top_of_part > -INFINITY, mass * tl.exp(top_of_part - top), 0.0), 0))
        at = tl.arange(0, RANKED)
        known = at < slices * WIDTH
        score = tl.load(scores + draw * slices * WIDTH + at, mask=known, other=-INFINITY)
        token_id = tl.load(token_ids + draw * slices * WIDTH + at, mask=known, other=NONE)
        spoilt = tl.min(token_id, 0) == SPOILT
        temperature = tl.load(draws + 3 * room + draw).to(tl.int32).to(tl.float32, bitcast=True)
        temperature = tl.where(temperature > 0, temperature, 1.0)
        for place in tl.static_range(WIDTH):
            best = tl.max(score, 0)
            found = tl.min(tl.where((score == best) & (score > -INFINITY), token_id, NONE), 0)
            real = (found != NONE) & (spoilt == 0)
            z = tl.load(logits + row * row_stride + found, mask=real, other=-INFINITY).to(tl.float32)
            log_prob = tl.div_rn(z, temperature) - top - log_mass
            tl.store(ranked + draw * 2 * WIDTH + place, tl.where(real, found, -1))
            log_prob = tl.where(real, log_prob, -INFINITY)
            tl.store(ranked + (draw * 2 + 1) * WIDTH + place, log_prob.to(tl.int32, bitcast=True))
            score = tl.where(token_id == found, -INFINITY, score)
