"""Loops in a text: a model that repeats itself to the end teaches nothing but to repeat."""

from __future__ import annotations

import numpy as np

from draftwire_core.training.data.example import Ids

_LONGEST = 64
"""Most tokens of what is repeated."""
_COPIES = 4
"""Fewest copies in a row that are a loop."""
_SHORTEST = 32
"""Fewest tokens of a loop. Rows of dashes and blanks in ordinary text are shorter."""


def without_loop(tokens: Ids) -> Ids:
    """Returns the tokens [positions] up to the second repetition of the first loop; all of them if there is none.

    A loop is the same 1 to 64 tokens at least four times in a row, and at least 32 tokens long.
    """
    end = len(tokens)
    for size in range(1, min(_LONGEST, len(tokens) // _COPIES) + 1):
        # A run of `length` tokens that equal those `size` places before them ends length + size tokens that repeat.
        least = max(_COPIES * size, _SHORTEST) - size
        start = _first_run(tokens[size:] == tokens[:-size], least)
        if start is not None:
            end = min(end, start + 2 * size)
    return tokens[:end]


def _first_run(same: np.ndarray, least: int) -> int | None:
    """Returns where the first run of at least `least` true values begins."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
    starts, ends = edges[::2], edges[1::2]
    long = np.flatnonzero(ends - starts >= least)
    return int(starts[long[0]]) if len(long) else None
