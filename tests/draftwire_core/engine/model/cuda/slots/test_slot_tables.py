"""Slots that stay on the device from step to step, in Triton's interpreter."""

import gc

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from draftwire_core.engine.kv.kv_slots import KvCache, SlotList
from draftwire_core.engine.model.cuda.slots.slot_batch import BatchRoom, SlotBatch
from draftwire_core.engine.model.cuda.slots.slot_layout import SlotLayout
from draftwire_core.engine.model.cuda.slots.slot_steps import SlotSteps
from draftwire_core.engine.model.cuda.slots.slot_tables import KnownSlots, SlotTables
from draftwire_core.engine.model.cuda.work.parts import part_of
from draftwire_core.engine.model.cuda.work.slot_work import PAGE, RESIDENT, TILE_KEYS
from draftwire_core.engine.model.packed_batch import BatchBuilder, PackedBatch
from draftwire_core.engine.model.packed_model import PackedModel
from tests.harness.engine.engines import random_tokens, tiny_model, walk
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.kernels.untried_kernels import untried_kernels

prepare_interpreter()
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton.runtime.interpreter")
CPU = torch.device("cpu")


def owner_of(slots: np.ndarray) -> SlotList:
    """A sequence with these slots."""
    owner = SlotList()
    owner.extend(slots)
    return owner


def batch_of(*owners: SlotList, branches: int = 1, rows: int = 2) -> PackedBatch:
    """A step of sequences, each with some branches of new rows."""
    builder = BatchBuilder()
    for number, owner in enumerate(owners):
        context = owner.array()
        for branch in range(branches):
            first = 100_000 + 1000 * number + 100 * branch
            added = [builder.add_row(5, len(context) + row, first + row, True) for row in range(rows)]
            builder.add_lane(context, added, owner=owner)
    return builder.build(4, CPU)


def found(batch: PackedBatch, tables: SlotTables) -> tuple[list[list[tuple[int, list[int]]]], int]:
    """What each item of a batch sees, read where the kernels read it: position and lane of each slot in order. And how
    many slots were listed. The tables then take what they lack."""
    layout = SlotLayout.of(batch, tables)
    placed = SlotBatch(BatchRoom.of_layout(len(batch), layout), CPU, tables.tensor)
    placed.fill(batch, layout)
    (work,) = placed.work
    numbers = placed.numbers
    items: list[list[tuple[int, list[int]]]] = []
    for item in numbers[: layout.items.size].view(-1, 6).tolist():
        seen: dict[int, list[int]] = {}
        for index in range(item[2], item[3]):
            base, first, last, lane = numbers[4 * index : 4 * index + 4].tolist()
            source = work.tables if lane == RESIDENT else numbers
            assert part_of(first) == part_of(max(first, last - 1)) == item[4] or first >= last
            if first < last:
                seen.setdefault(max(lane, -1), []).extend(source[base + first : base + last].tolist())
        items.append(sorted(seen.items()))
    if placed.moves:
        tables.move(numbers, placed.first_move, placed.moves)
    return items, len(layout.seen)


@pytest.mark.parametrize("branches", [1, 3])
def test_steps_see_what_they_see_without_tables(branches: int) -> None:
    """Sequences that grow by tokens, tiles and parts, one that is rolled back to nothing, and one that is new."""
    rng = np.random.default_rng(1)
    tables, slots = SlotTables(20_000, CPU), rng.permutation(np.arange(1, 20_000))
    owners = [owner_of(slots[:1000]), owner_of(slots[1000:1063]), owner_of(slots[2000:2511])]
    listed = []
    for step in range(12):
        for number, owner in enumerate(owners):
            owner.extend(slots[5000 + 1000 * number + 10 * step :][: (1, 1, 70, 3)[number]])
        if step == 5:
            owners[0].clear()
            owners[0].extend(slots[15_000:15_600])
        if step == 7:
            owners.append(owner_of(slots[16_000:16_400]))
        batch = batch_of(*owners, branches=branches)
        bare = batch_of(*owners, branches=branches)
        for lane in bare.lanes:
            lane.owner = None
        with_tables, count = found(batch, tables)
        without, whole = found(bare, tables)
        assert with_tables == without
        listed.append((count, whole))
    tails = 3 * branches * (TILE_KEYS + 2)
    for step, (count, whole) in enumerate(listed):
        if step not in (0, 5, 7):
            assert count < tails + 3 * 2 * TILE_KEYS < whole
        assert step or count == whole


def test_what_fits_does_not_depend_on_what_is_known() -> None:
    """All ranks must choose the same size for a step."""
    tables = SlotTables(5000, CPU)
    owner = owner_of(np.arange(1, 1400))
    batch = batch_of(owner, branches=2)
    before = SlotLayout.of(batch, tables)
    found(batch, tables)
    after = SlotLayout.of(batch, tables)
    assert len(after.seen) < len(before.seen) and len(after.segments) == len(before.segments)
    assert after.numbers == before.numbers == SlotLayout.of(batch).numbers
    owner.extend(np.arange(1400, 1500))
    split = SlotLayout.of(batch_of(owner, branches=2), tables)  # of a part the tables know a half
    assert len(split.segments) > len(after.segments)
    room = BatchRoom.of_layout(4, split)
    placed = SlotBatch(room, CPU, tables.tensor)
    assert room.holds(split) and placed._write(placed._block.host["work"], split) <= room.numbers


def test_pages_are_free_again_when_a_sequence_is_gone() -> None:
    tables = SlotTables(5000, CPU)
    owner = owner_of(np.arange(1, 1400))
    found(batch_of(owner), tables)
    assert tables.used == 3
    found(batch_of(owner), tables)
    assert tables.used == 3
    del owner
    gc.collect()
    found(batch_of(other := owner_of(np.arange(1, 100))), tables)
    assert tables.used == 1 and len(other) == 99


def test_sequences_for_which_there_are_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their slots are listed in each step, as far as there is no room."""
    monkeypatch.setattr("draftwire_core.engine.model.cuda.slots.slot_tables._SPARE_PAGES", 0)
    tables = SlotTables(2 * PAGE, CPU)
    owners = [owner_of(np.arange(1, 1500)), owner_of(np.arange(2000, 2100))]
    expected, whole = found(batch_of(*owners), SlotTables(10 * PAGE, CPU))
    assert found(batch_of(*owners), tables) == (expected, whole)
    assert found(batch_of(*owners), tables) == (expected, whole - 2 * PAGE)
    assert tables.used == 2


def test_a_row_has_the_same_bits_with_tables_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows after a context of random keys and values, which the tables learn in the first of two passes."""
    with untried_kernels():
        model = PackedModel(tiny_model("Llama", num_hidden_layers=1), 200, kernels=True)
    model.capture_graphs()  # as a GPU replays them; makes the cache
    assert isinstance(model.cache, KvCache)
    with torch.inference_mode():
        for stored in model.cache.layer(0, torch.empty(0), torch.empty(0)):
            stored.normal_(generator=torch.Generator().manual_seed(1))
    owner, fresh = owner_of(model.pool.take(150)), model.pool.take(2)
    knowns: list[int] = []
    look_up = SlotTables.look_up

    def noted(self: SlotTables, owner: SlotList, length: int) -> KnownSlots:
        result = look_up(self, owner, length)
        knowns.append(result.known)
        return result

    def logits() -> torch.Tensor:
        builder = BatchBuilder()
        rows = [builder.add_row(5 + row, 150 + row, int(slot), True) for row, slot in enumerate(fresh)]
        builder.add_lane(owner.array(), rows, owner=owner)
        return model.forward(builder.build(model.group_size, model.device))

    monkeypatch.setattr(SlotTables, "look_up", noted)
    first, again = logits(), logits()
    assert knowns == [0, 128]
    monkeypatch.setattr(SlotTables, "look_up", lambda *_: None)
    without = logits()
    assert torch.equal(first, without) and torch.equal(again, without)


@pytest.mark.slow
class TestWalks:
    def test_a_row_has_the_same_bits_with_tables_and_without(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Prompts in chunks, trees and plain steps of two sequences; captured, as a GPU replays them."""
        model = PackedModel(tiny_model("Llama", num_hidden_layers=1), 400, kernels=True)
        assert isinstance(model.steps, SlotSteps)
        model.capture_graphs()
        texts, prompts = [random_tokens(150, seed=1), random_tokens(75, seed=2)], [140, 66]
        knowns: list[int] = []
        look_up = SlotTables.look_up

        def noted(self: SlotTables, owner: SlotList, length: int) -> KnownSlots:
            result = look_up(self, owner, length)
            knowns.append(result.known)
            return result

        monkeypatch.setattr(SlotTables, "look_up", noted)
        rows = walk(model, texts, prompts, seed=1, chunk=50)
        assert {64, 128} <= set(knowns)
        monkeypatch.setattr(SlotTables, "look_up", lambda *_: None)
        without = walk(model, texts, prompts, seed=1, chunk=50)
        assert rows.keys() == without.keys() and all(torch.equal(rows[each], without[each]) for each in rows)
