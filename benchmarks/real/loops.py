"""Loops: where a small model's output begins to repeat itself without end."""

from __future__ import annotations

from collections.abc import Sequence

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
