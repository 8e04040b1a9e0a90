"""The parameters of many rows."""

import torch

from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.pretended_gpu import DEVICE, plain, pretended_gpu

PARAMS = [
    SamplingParams(temperature=0.7, seed=2**64 - 1, min_p=0.1),
    SamplingParams(temperature=0.0, top_k=3, top_p=0.5),
    SamplingParams(top_p=0.5),
    SamplingParams(seed=9),
    SamplingParams(top_k=4, typical_p=0.3),
]


def test_filtered_rows_are_those_with_any_filter_that_are_not_greedy() -> None:
    batch = SamplingBatch.build(PARAMS, range(5))
    assert batch.filtered_rows == [0, 2, 4] and batch.filters
    plain_rows = batch.select([1, 3])
    assert plain_rows.filtered_rows == [] and not plain_rows.filters


def test_all_rows_reach_a_device_by_one_copy() -> None:
    with pretended_gpu() as gpu:
        batch = SamplingBatch.build(PARAMS, range(5))
        with gpu.counted() as count:
            moved = batch.to(DEVICE)
        assert count == {"copies to the device": 1}
    assert moved.filtered_rows == batch.filtered_rows
    for name in ("seeds", "positions", "temperatures", "greedy", "log_min_p"):
        assert torch.equal(plain(getattr(moved, name)), getattr(batch, name))
