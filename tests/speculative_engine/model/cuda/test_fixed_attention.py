"""Attention in pieces of one shape against attention by the compiled code, and in any company."""

import numpy as np
import pytest
import torch

from speculative_engine.kernels import attention as compiled_attention
from speculative_engine.model.cuda.fixed_attention import attend_fixed
from speculative_engine.model.cuda.fixed_batch import FixedBatch
from speculative_engine.model.cuda.fixed_rows import padded
from speculative_engine.model.packed_batch import BatchBuilder
from tests.harness.engine.random_work import CPU, ragged_batch, stored


@pytest.mark.skipif(compiled_attention.library() is None, reason="not built: there is no C compiler")
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("sunk", [False, True])
@pytest.mark.parametrize("shared", [1, 3])
def test_pieces_give_what_the_whole_gives(shared: int, sunk: bool, softcap: float | None, window: int | None) -> None:
    batch = ragged_batch(shared)
    keys, values = stored(2, 32, 1), stored(2, 48, 2)
    query = 0.3 * torch.randn(2 * shared, 17, 32, generator=torch.Generator().manual_seed(3))
    sinks = torch.randn(2 * shared) if sunk else None
    expected = compiled_attention.attend(batch.slot_lanes, query, keys, values, window, softcap, sinks)
    wide = torch.zeros(2 * shared, 64, 32)
    wide[:, :17] = query
    found = attend_fixed(padded(batch, 64), wide, keys, values, window, softcap, sinks)
    torch.testing.assert_close(found[:17], expected, atol=2e-6, rtol=2e-5)
    assert not found[17:].any()


def long_batch(company: int, rows: int) -> FixedBatch:
    """Returns the row at position 600, first of some of its sequence, after rows of other sequences."""
    builder = BatchBuilder()
    order = np.random.default_rng(0).permutation(1000) + 1
    for number in range(company):
        context = order[: 90 * number + 1]
        builder.add_lane(context, [builder.add_row(1, len(context), int(order[-1 - number]), True)])
    own = [builder.add_row(5 + i, 600 + i, int(order[600 + i]), True) for i in range(rows)]
    builder.add_lane(order[:600], own)
    return padded(builder.build(2, CPU), 64)


@pytest.mark.parametrize(("company", "rows"), [(0, 2), (0, 9), (0, 64), (1, 1), (8, 1), (8, 40)])
def test_a_row_has_the_same_bits_in_any_company(company: int, rows: int) -> None:
    generator = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(2, 1001, 32, generator=generator) for _ in range(2))
    query = torch.randn(4, 64, 32, generator=generator)
    alone = attend_fixed(long_batch(0, 1), query, keys, values, None, None, None)[0]
    moved = query.clone()
    moved[:, company] = query[:, 0]
    beside = attend_fixed(long_batch(company, rows), moved, keys, values, None, None, None)[company]
    assert torch.equal(beside, alone)
