"""The work of attention by slots."""

import numpy as np
import pytest
import torch

from draftwire_core.engine.model.cuda.slots.slot_batch import BatchRoom, SlotBatch
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotLayout
from draftwire_core.engine.model.cuda.work.parts import SHORT, part_count
from draftwire_core.engine.model.cuda.work.slot_work import ITEM, TILE_KEYS, tile_rows
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch

CPU = torch.device("cpu")


def batch_of(*chains: tuple[int, int], group: int = 4) -> PackedBatch:
    """Sequences of so many committed tokens and so many rows."""
    builder = BatchBuilder()
    for number, (context, rows) in enumerate(chains):
        first = 1000 * number
        added = [builder.add_row(5, context + row, first + context + row, True) for row in range(rows)]
        builder.add_lane(np.arange(first, first + context), added)
    return builder.build(group, CPU)


def seen(layout: SlotLayout, item: int) -> list[list[int]]:
    """The slots of each segment of an item, except empty ones."""
    first, last = layout.items[item, 2:4]
    told = layout.segments[first:last]
    return [layout.seen[base + begin : base + end].tolist() for base, begin, end, _ in told if begin < end]


def test_a_plain_row_sees_its_sequence_in_parts() -> None:
    context = 2 * SHORT - 68
    layout = SlotLayout.of(batch_of((context, 1)))
    assert layout.items[:, 4].tolist() == [0, 1] and layout.asked.tolist() == [[0, 0, context, 0]]
    assert seen(layout, 0) == [list(range(SHORT))]
    shared = context // TILE_KEYS * TILE_KEYS
    assert seen(layout, 1) == [list(range(SHORT, shared)), list(range(shared, context + 1))]


def test_rows_share_tiles_of_queries() -> None:
    assert [tile_rows(group) for group in (1, 4, 5, 32, 71)] == [32, 8, 6, 1, 1]
    layout = SlotLayout.of(batch_of((10, 20)))
    assert layout.items[:, :2].tolist() == [[0, 8], [8, 8], [16, 4]]
    assert layout.items[:, 5].tolist() == [10, 18, 26]
    assert [len(seen(layout, item)[0]) for item in range(3)] == [18, 26, 30]  # none sees what is after its last row


def test_branches_have_segments_of_their_own() -> None:
    builder = BatchBuilder()
    context = np.arange(100, 170)
    rows = [builder.add_row(5, 70 + row, 200 + row, True) for row in range(3)]
    other = builder.add_row(5, 71, 300, True)
    builder.add_lane(context, rows)
    builder.add_lane(context, [rows[0], other], 1)
    layout = SlotLayout.of(builder.build(1, CPU))
    assert len(layout.items) == 1 and layout.segments[-3:, 3].tolist() == [-1, 0, 1]
    tail = list(range(164, 170))
    assert seen(layout, 0) == [list(range(100, 164)), [*tail, 200, 201, 202], [*tail, 200, 300]]


def test_rows_without_a_lane_are_refused() -> None:
    builder = BatchBuilder()
    builder.add_row(5, 0, 1, True)
    builder.add_lane(np.empty(0, np.int64), [builder.add_row(5, 0, 2, True)])
    with pytest.raises(ValueError, match="1 rows of 2"):
        SlotLayout.of(builder.build(1, CPU))


def test_rooms() -> None:
    room = BatchRoom.of_step(4, 2000)
    assert room.partials == 4 * (part_count(2000) + 1)
    assert room.holds(SlotLayout.of(batch_of((700, 4))))
    assert not room.holds(SlotLayout.of(batch_of((700, 5))))
    assert not room.holds(SlotLayout.of(batch_of((3000, 1))))
    assert not room.holds(SlotLayout.of(batch_of(*[(900, 1)] * 4)))


def test_tensors_are_filled_again() -> None:
    """What a step leaves behind is not seen by the next one."""
    room = BatchRoom.of_step(8, 2000)
    fixed, fresh = SlotBatch(room, CPU), SlotBatch(room, CPU)
    for chains in [((700, 6), (9, 2)), ((3, 1),), ((60, 5),)]:
        batch = batch_of(*chains)
        layout = SlotLayout.of(batch)
        fixed.fill(batch, layout)
        count = len(batch)
        assert fixed.token_ids.tolist() == [5] * count + [0] * (8 - count)
        assert fixed.slots[:count].tolist() == batch.slots.tolist() and not fixed.slots[count:].any()
        work = fixed.work[0]
        assert work.ranges.tolist() == [0, len(layout.items)] and work.places == 8
        asked = work.asked.view(-1, 4)
        items = work.items[: layout.items.size].view(-1, ITEM)
        assert asked[:count].tolist() == layout.asked.tolist()
        assert asked[count:].tolist() == [[row, -1, -1, 0] for row in range(count, 8)]
        for item, (first, last) in enumerate(items[:, 2:4].tolist()):
            told = work.segments.view(-1)[: len(work.segments) // 4 * 4].view(-1, 4)[first:last].tolist()
            found = [work.seen[base + begin : base + end].tolist() for base, begin, end, _ in told if begin < end]
            assert found == seen(layout, item)
    assert fresh.work[0].asked.view(-1, 4)[:, 2].tolist() == [-1] * 8
