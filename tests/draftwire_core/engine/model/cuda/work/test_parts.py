"""Parts of a sequence."""

from itertools import pairwise

import numpy as np

from draftwire_core.engine.model.cuda.work.parts import LONG, LONG_FROM, SHORT, begin_of, part_count, part_of
from draftwire_core.engine.model.cuda.work.slot_work import PAGE, TILE_KEYS


def test_parts_are_short_and_then_long() -> None:
    begins = [begin_of(part) for part in range(20)]
    sizes = [after - before for before, after in pairwise(begins)]
    count = LONG_FROM // SHORT
    assert begins[0] == 0 and sizes == [SHORT] * count + [LONG] * (19 - count)


def test_each_position_is_in_the_part_that_begins_before_it() -> None:
    for position in range(0, LONG_FROM + 3 * LONG):
        part = part_of(position)
        assert begin_of(part) <= position < begin_of(part + 1)


def test_arrays_have_the_same_parts() -> None:
    positions = np.arange(0, LONG_FROM + 3 * LONG, 7)
    assert part_of(positions).tolist() == [part_of(each) for each in positions.tolist()]
    parts = np.arange(30)
    assert begin_of(parts).tolist() == [begin_of(each) for each in parts.tolist()]
    assert part_count(positions).tolist() == [part_count(each) for each in positions.tolist()]


def test_how_many_parts_positions_reach_into() -> None:
    assert [part_count(each) for each in (0, 1, SHORT, SHORT + 1)] == [0, 1, 1, 2]
    assert part_count(LONG_FROM + LONG) == LONG_FROM // SHORT + 1


def test_tiles_and_pages_are_whole() -> None:
    """A tile is in one part, and a part in one page."""
    assert SHORT % TILE_KEYS == 0 and LONG % SHORT == 0 and LONG_FROM % LONG == 0 and PAGE % LONG == 0
