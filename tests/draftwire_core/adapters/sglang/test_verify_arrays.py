"""Draft trees as SGLang's arrays."""

from __future__ import annotations

import numpy as np

from draftwire_core.adapters.common.draft_tree import DraftTree
from draftwire_core.adapters.sglang.verify_arrays import NOTHING, tree_mask, verify_arrays


def test_rows_parents_and_mask() -> None:
    tree = DraftTree([7, 8, 9], [-1, -1, 1])
    tokens, parents = verify_arrays([5, 6], [tree, DraftTree()], 5)
    assert tokens.tolist() == [[5, 7, 8, 9, 0], [6, 0, 0, 0, 0]]
    assert parents.tolist() == [[NOTHING, 0, 0, 2, NOTHING], [NOTHING] * 5]
    mask = tree_mask(parents)
    assert mask[0].astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [0, 0, 0, 0, 1],
    ]
    assert np.array_equal(mask[1], np.eye(5, dtype=bool))


def test_no_requests() -> None:
    tokens, parents = verify_arrays([], [], 4)
    assert tokens.shape == (0, 4)
    assert tree_mask(parents).shape == (0, 4, 4)
