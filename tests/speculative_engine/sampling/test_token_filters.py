"""Thresholds of the filters: on one device the same bits in any batch and with any number of threads."""

import random
from collections.abc import Iterator

import pytest
import torch

from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.sampling.token_filters import block_tops, thresholds

VOCABULARY = 20_011
"""More than a thread takes of a sum."""


def least(logits: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    batch = SamplingBatch.build(params, range(len(params)), torch.device("cpu"))
    found = thresholds(logits, block_tops(logits), batch)
    assert found is not None
    return found


def some(count: int, seed: int) -> tuple[torch.Tensor, list[SamplingParams]]:
    """Rows with filters of all kinds."""
    rng = random.Random(seed)
    kinds = (
        lambda: {"top_p": rng.uniform(0.05, 0.999)},
        lambda: {"top_k": rng.randrange(1, 200)},
        lambda: {"top_k": rng.randrange(2, 200), "top_p": rng.uniform(0.05, 0.999)},
        lambda: {"min_p": rng.uniform(0.001, 0.5)},
        lambda: {"min_p": rng.uniform(0.001, 0.5), "top_p": rng.uniform(0.05, 0.999)},
    )
    params = [SamplingParams(temperature=rng.uniform(0.5, 2.0), seed=row, **kinds[row % 5]()) for row in range(count)]
    return torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 4, params


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_a_threshold_does_not_depend_on_company_or_threads() -> None:
    logits, params = some(20, seed=1)
    expected = least(logits, params)
    assert bool(expected.isfinite().all()) and len(set(expected.tolist())) == 20
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        assert torch.equal(least(logits, params), expected)
        for row in range(20):
            assert torch.equal(least(logits[row : row + 1], params[row : row + 1]), expected[row : row + 1])
        some_rows = random.Random(count).sample(range(20), 7)
        assert torch.equal(least(logits[some_rows], [params[row] for row in some_rows]), expected[some_rows])
