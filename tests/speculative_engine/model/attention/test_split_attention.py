"""Attention in parts against attention as a whole, by the compiled code and by hand."""

import numpy as np
import pytest
import torch

from speculative_engine.kernels import attention as compiled_attention
from speculative_engine.kv.kv_slots import PADDING_SLOT
from speculative_engine.model.attention.split_attention import Part, attend_seen, merge
from speculative_engine.model.cuda.bucketed_attention import attend_bucket
from speculative_engine.model.cuda.bucketed_batch import BucketedBatch, key_count
from speculative_engine.model.cuda.step_buckets import Bucket
from speculative_engine.model.packed_batch import BatchBuilder
from tests.harness.engine.random_work import CPU, ragged_batch, stored


@pytest.mark.skipif(compiled_attention.library() is None, reason="not built: there is no C compiler")
@pytest.mark.parametrize("bucket", [Bucket(17, 149), Bucket(32, 200)], ids=["full", "padded"])
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize("shared", [1, 3])
def test_parts_give_what_the_whole_gives(
    shared: int, sunk: bool, softcap: float | None, window: int | None, bucket: Bucket
) -> None:
    batch = ragged_batch(shared)
    assert (len(batch), key_count(batch)) == (17, 149)
    fixed = BucketedBatch(bucket, CPU)
    keys, values = stored(2, 32, 1), stored(2, 48, 2)
    query = torch.randn(2 * shared, 17, 32, generator=torch.Generator().manual_seed(3))
    sinks = torch.randn(2 * shared) if sunk else None
    expected = compiled_attention.attend(
        batch.slot_lanes, (0.3 * query).contiguous(), keys, values, window, softcap, sinks
    )

    place = torch.from_numpy(fixed.fill(batch))
    assert fixed.slots[place].tolist() == batch.slots.tolist()
    padded = torch.zeros(2 * shared, bucket.rows, 32)
    padded[:, place] = query
    new = keys[:, fixed.slots], values[:, fixed.slots]
    found = attend_bucket(fixed, padded, new, (keys, values), 0.3, window, softcap, sinks)
    torch.testing.assert_close(found[place], expected, atol=2e-6, rtol=2e-5)
    assert found.isfinite().all()


def test_a_batch_leaves_nothing_behind_for_the_next() -> None:
    fixed, fresh = (BucketedBatch(Bucket(32, 200), CPU) for _ in range(2))
    fixed.fill(ragged_batch(1))
    builder = BatchBuilder()
    builder.add_lane(np.arange(1, 4), [builder.add_row(5, 3, 9, True)])
    for each in (fixed, fresh):
        each.fill(builder.build(1, CPU))
    for name in ("token_ids", "positions", "slots", "first_rows", "first_keys", "tree"):
        assert torch.equal(getattr(fixed, name), getattr(fresh, name)), name
    assert fixed.slots.tolist() == [9] + [PADDING_SLOT] * 31
    assert fixed.first_rows.tolist() == [0, 1] + [32] * 31 and fixed.first_keys.tolist() == [0] + [3] * 32
    assert torch.equal(fixed.tree, torch.eye(32, dtype=torch.bool))
    assert fixed.empty().tolist() == [False] + [True] * 31


def test_before_it_is_filled_all_rows_are_padding() -> None:
    """Graphs are captured over such batches; an index out of bounds would end the process on a GPU."""
    fixed = BucketedBatch(Bucket(4, 64), CPU)
    assert fixed.empty().tolist() == [True] * 4 and not fixed.seen(None).any()
    assert torch.equal(fixed.tree, torch.eye(4, dtype=torch.bool))
    assert [bounds.tolist() for bounds in fixed.ranges()] == [[0, 4, 4, 4, 4], [0] * 5]


def test_a_row_that_no_lane_asks_for() -> None:
    builder = BatchBuilder()
    builder.add_lane(np.empty(0, dtype=np.int64), [builder.add_row(5, 0, 1, True)])
    builder.add_row(6, 0, 2, True)
    with pytest.raises(ValueError, match="lanes contain 1 of 2 rows"):
        BucketedBatch(Bucket(4, 8), CPU).fill(builder.build(1, CPU))


def test_what_is_no_number_stays_with_the_rows_that_see_it() -> None:
    query, keys, values = torch.randn(2, 3, 8), torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    values[0, 4] = torch.inf
    keys[0, 3] = torch.nan
    seen = torch.tensor([[1, 1, 0, 0, 0], [1, 0, 0, 0, 1], [1, 0, 0, 1, 0]]).bool()
    out, _ = attend_seen(query, keys, values, seen, 1.0)
    assert out[0].isfinite().all() and not out[1].isfinite().any() and out[2].isnan().all()


def test_a_part_that_a_row_sees_nothing_of_counts_for_nothing() -> None:
    query, keys, values = torch.randn(2, 3, 8), torch.randn(1, 5, 8), torch.randn(1, 5, 8)
    whole = attend_seen(query, keys, values, torch.ones(3, 5).bool(), 1.0)
    nothing = attend_seen(query, keys, values, torch.zeros(3, 5).bool(), 1.0)
    assert torch.equal(nothing.out, torch.zeros(3, 2, 8)) and (nothing.weight == -torch.inf).all()
    assert torch.equal(merge([nothing, whole]), whole.out)
    assert torch.equal(merge([Part(whole.out, whole.weight - 1e4), whole]), whole.out)
