"""The rows that each row of a batch sees, from flat arrays."""

import numpy as np
import pytest

from draftwire_core.engine.model.cuda.slots.slot_layout import LanePaths
from draftwire_core.engine.model.packed_batch import Lane

CONTEXT = np.arange(3)


@pytest.mark.parametrize("long", [5, 100])
def test_each_row_sees_its_path(long: int) -> None:
    """Two branches of a tree, a chain of any length, and a lane of one row."""
    chain = list(range(4, 4 + long))
    last = 4 + long
    ranges = [
        [Lane(CONTEXT, [0, 2]), Lane(CONTEXT, [0, 1, 3], 1)],
        [Lane(CONTEXT[:0], chain)],
        [Lane(CONTEXT[:1], [last])],
    ]
    paths = LanePaths.of(ranges)
    assert paths.asked.tolist() == [0, 2, 1, 3, *chain, last]
    assert paths.ranges.tolist() == [0] * 4 + [1] * long + [2]
    seen = {0: [0], 2: [0, 2], 1: [0, 1], 3: [0, 1, 3], last: [last]}
    seen |= {row: chain[: index + 1] for index, row in enumerate(chain)}
    for query in paths.queries:
        assert paths.rows[paths.starts[query] : query + 1].tolist() == seen[int(paths.rows[query])]


def test_no_lanes() -> None:
    paths = LanePaths.of([])
    assert not len(paths.asked) and not len(paths.queries)
