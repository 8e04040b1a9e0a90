"""Passes that all have the same number of rows."""

import pytest
import torch

from speculative_engine.kv.kv_slots import PADDING_SLOT
from speculative_engine.loading.self_test import run_self_test
from speculative_engine.model.cuda import fixed_rows
from speculative_engine.model.cuda.fixed_rows import padded, split
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


def test_rows_that_pad_see_themselves() -> None:
    batch = padded(ragged_batch(1), 32)
    assert len(batch) == 32 and batch.slots[17:].tolist() == [PADDING_SLOT] * 15
    assert [lane.rows for lane in batch.lanes[-15:]] == [[row] for row in range(17, 32)]


@pytest.mark.parametrize("rows", [5, 64])
@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GptOss"])
def test_reproducible_passes_say_what_plain_forwards_say(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixed_rows, "ROWS", rows)
    shapes = set()
    run = PackedModel._run
    monkeypatch.setattr(PackedModel, "_run", lambda self, batch: (shapes.add(len(batch)), run(self, batch))[1])
    model = reproducible(name)
    found = walk(model, [random_tokens(count, seed=count) for count in (33, 7, 50)], [15, 1, 40], seed=1)
    assert check_against_plain(tiny_model(name), found) < 1e-4
    assert shapes == {rows}


def test_the_number_of_rows_changes_no_bit() -> None:
    """Uses a model with transformers' own linear layers."""
    assert run_self_test(reproducible("Llama")).bit_exact
