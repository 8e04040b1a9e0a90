"""Draft trees as the arrays of SGLang's tree verification, which has the same number of rows for every request.

The first row of a request is its last committed token, the next ones are its draft tokens, and the rest is padding:
rows that follow no other, so that no path leads to them, whatever is sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwire_core.adapters.common.draft_tree import DraftTree

NOTHING = -1
"""Parent of a row that follows no other."""


def verify_arrays(last_tokens: Sequence[int], trees: Sequence[DraftTree], rows: int) -> np.ndarray:
    """Returns token and parent of each row, int64 [2, requests, rows]; parents are rows of the same request.

    last_tokens: the last committed token of each request.
    """
    arrays = np.zeros((2, len(trees), rows), dtype=np.int64)
    tokens, parents = arrays
    parents[:] = NOTHING
    tokens[:, 0] = last_tokens
    for request, tree in enumerate(trees):
        count = len(tree.tokens)
        tokens[request, 1 : count + 1] = tree.tokens
        parents[request, 1 : count + 1] = np.asarray(tree.parents, dtype=np.int64) + 1
    return arrays


def tree_mask(parents: np.ndarray) -> np.ndarray:
    """Returns which rows of its request each row sees, bool [requests, rows, rows]: itself, and those it follows.

    parents: int64 [requests, rows], each above its row, or NOTHING.
    """
    requests, rows = parents.shape
    mask = np.zeros((requests, rows, rows), dtype=bool)
    each = np.arange(requests)
    for row in range(rows):
        following = parents[:, row] != NOTHING
        mask[:, row] = mask[each, parents[:, row]] & following[:, None]
        mask[:, row, row] = True
    return mask
