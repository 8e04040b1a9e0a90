"""Passes that all have the same number of rows."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from speculative_engine.kv.kv_slots import PADDING_SLOT
from speculative_engine.loading.self_test import run_self_test
from speculative_engine.model.cuda import fixed_rows
from speculative_engine.model.cuda.fixed_rows import padded, split
from speculative_engine.model.layers import cpu_layers
from speculative_engine.model.packed_batch import BatchBuilder
from speculative_engine.model.packed_model import PackedModel
from tests.harness.engine.engines import check_against_plain, random_tokens, tiny_model, walk
from tests.harness.engine.random_work import ragged_batch


def reproducible(name: str, dtype: torch.dtype = torch.float32) -> PackedModel:
    return PackedModel(tiny_model(name, dtype), 4000, row_exact=False, reproducible=True)


def test_what_a_row_sees_of_an_earlier_part_is_committed_in_the_next() -> None:
    batch = ragged_batch(1)
    whole = {int(lane.rows[-1]): [*lane.context, *batch.host[2, lane.rows].tolist()] for lane in batch.lanes}
    for most in (1, 3, 8, 17):
        parts = split(batch, most)
        assert [len(part) for part in parts] == [most] * (17 // most) + [17 % most] * (17 % most > 0)
        first = 0
        asked: list[int] = []
        for part in parts:
            for lane in part.lanes:
                last = first + lane.rows[-1]
                seen = [*lane.context, *part.host[2, lane.rows].tolist()]
                assert any(seen == path[: len(seen)] for path in whole.values()) and whole.get(last, seen) == seen
                asked += [first + row for row in lane.rows[lane.first_query :]]
            first += len(part)
        assert sorted(asked) == list(range(17))
        assert torch.equal(torch.cat([part.host for part in parts], dim=1), batch.host)


def test_rows_that_pad_belong_to_no_lane() -> None:
    batch = padded(ragged_batch(1), 32)
    assert len(batch) == 32 and batch.slots[17:].tolist() == [PADDING_SLOT] * 15
    assert max(row for lane in batch.lanes for row in lane.rows) == 16


@pytest.mark.parametrize("rows", [5, 64])
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GptOss"])
def test_reproducible_passes_say_what_plain_forwards_say(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_rows, "ROWS", rows)
    shapes = set()
    run = PackedModel._run_whole
    monkeypatch.setattr(PackedModel, "_run_whole", lambda self, batch: (shapes.add(len(batch)), run(self, batch))[1])
    model = reproducible(name)
    found = walk(model, [random_tokens(count, seed=count) for count in (21, 7)], [15, 1], seed=1)
    assert check_against_plain(tiny_model(name), found) < 1e-4
    assert shapes == {rows}


def test_the_number_of_rows_changes_no_bit() -> None:
    """Uses a model with transformers' own linear layers."""
    model = tiny_model("Llama", num_hidden_layers=1)
    assert run_self_test(PackedModel(model, 4000, row_exact=False, reproducible=True)).bit_exact


class Shapes(TorchDispatchMode):
    """Records the operations whose order of sums may depend on their shapes, with these shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[tuple[str, ...]] = set()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if call.overloadpacket.__name__ in ("linear", "mm", "addmm", "bmm", "sum", "mean", "_softmax"):
            shapes = [str(tuple(each.shape)) for each in args if isinstance(each, torch.Tensor)]
            self.found.add((call.overloadpacket.__name__, *shapes))
        return call(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_products_and_sums_have_one_shape_in_any_company(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries choose by shape in which order they add."""
    monkeypatch.setattr(cpu_layers, "replace_linears", lambda *_: None)  # GPUs have transformers' own
    model = reproducible(name)
    slots = model.pool.take(900)
    found = []
    for contexts, rows in (([0], 1), ([40], 1), ([40], 5), ([700, 40, 0], 2), ([300] * 8, 8), ([100], 100)):
        builder = BatchBuilder()
        for context in contexts:
            own = [builder.add_row(7 + i, context + i, int(slots[800 + i]), i % 2 == 0) for i in range(rows)]
            builder.add_lane(slots[:context], own)
        shapes = Shapes()
        with shapes:
            model.forward(builder.build(model.group_size, model.device))
        found.append(shapes.found)
    assert {shapes[0] for shapes in found[0]} >= {"linear", "bmm", "sum", "mean"}
    assert all(shapes == found[0] for shapes in found[1:])
