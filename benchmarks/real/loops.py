"""Loops: where a small model's output begins to repeat itself without end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from draftwire_tools.turns import Arrival, Request

TIMES = 3
"""Number of times in a row that the same tokens come in a loop."""
LEAST_TOKENS = 12
"""Fewest tokens of a loop."""
LONG = 16
"""Tokens of a passage of which two in a row are a loop."""


def cut_length(tokens: Sequence[int]) -> int:
    """Returns the number of tokens before an output loops, or all of them.

    A loop is where the same tokens come three times in a row, and take twelve tokens or more, or where a passage of
    sixteen tokens or more comes twice in a row. The first time belongs to what is kept. A list whose numbers count up
    is no loop.
    """
    count = len(tokens)
    cut = count
    for period in range(1, count // 2 + 1):
        wanted = period if period >= LONG else max((TIMES - 1) * period, LEAST_TOKENS - period)
        equal = 0
        for place in range(period, count):
            equal = equal + 1 if tokens[place] == tokens[place - period] else 0
            if equal == wanted:
                cut = min(cut, place + 1 - equal)
                break
    return cut


def before_loop(request: Request) -> Request:
    """Returns the part of a request before its output loops, or all of it.

    Tokens of a chunk are spread over the time since the chunk before. The part has as many of the steps as it has of
    the chunks.
    """
    count = cut_length(request.token_ids)
    if count == len(request.token_ids):
        return request
    kept: list[Arrival] = []
    left = count
    for arrival in request.arrivals:
        if not left:
            break
        taken = min(left, arrival.tokens)
        before = kept[-1].at if kept else request.asked_at
        kept.append(Arrival(before + (arrival.at - before) * taken / arrival.tokens, taken))
        left -= taken
    steps = round(request.stats.steps * len(kept) / len(request.arrivals))
    stats = replace(request.stats, steps=steps, tokens=count, accepted_tokens=count - steps)
    return replace(request, arrivals=tuple(kept), token_ids=request.token_ids[:count], stats=stats)
