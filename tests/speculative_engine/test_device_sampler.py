"""Sampling that asks the device for nothing, against sampling that does."""

import pytest
import torch

from speculative_engine.coupled_sampler import sample
from speculative_engine.device_sampler import draw
from speculative_engine.sampling_batch import SamplingBatch
from speculative_engine.sampling_params import SamplingParams


def batch_of(temperatures: list[float]) -> SamplingBatch:
    params = [SamplingParams(temperature=each, seed=3 + 2**63 * (row % 2)) for row, each in enumerate(temperatures)]
    return SamplingBatch.build(params, [7 * row for row in range(len(params))])


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("vocabulary", [50, 64, 300, 4096, 9001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_settled_rows_are_what_the_sampler_draws(dtype: torch.dtype, vocabulary: int, spread: float) -> None:
    batch = batch_of([0.0, 0.3, 1.0, 2.0, 0.0, 1.0, 100.0] * 4)
    logits = (spread * torch.randn(28, vocabulary, generator=torch.Generator().manual_seed(1))).to(dtype)
    expected = sample(logits, batch).token_ids
    token_ids, settled = draw(logits, batch)
    assert torch.equal(token_ids[settled], expected[settled])
    # The flatter a distribution, the more blocks may hold its winner.
    assert settled.float().mean() > (0.6 if spread == 0 else 0.9)
    few, sure = draw(logits, batch, opened=1)
    assert torch.equal(few[sure], expected[sure])
    assert sure.all() if vocabulary <= 64 else not sure.all()


def test_among_equals_the_lowest_id_wins() -> None:
    logits = torch.zeros(1, 500)
    logits[0, [70, 130, 3]] = 5.0
    token_ids, settled = draw(logits, batch_of([0.0]))
    assert token_ids.tolist() == [3] and settled.all()
    assert not draw(logits, batch_of([0.0]), opened=1).settled.any()


def test_bad_rows_are_told() -> None:
    logits = torch.randn(4, 500)
    logits[0, 7], logits[1, 8], logits[2] = torch.nan, torch.inf, -torch.inf
    token_ids, settled = draw(logits, batch_of([1.0, 0.0, 0.5, 1.0]))
    assert token_ids[:3].tolist() == [-1, -1, -1] and token_ids[3] >= 0 and settled.all()
