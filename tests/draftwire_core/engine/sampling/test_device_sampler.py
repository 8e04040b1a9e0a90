"""Sampling without synchronising with the device, against sampling that does."""

import pytest
import torch

from draftwire_core.engine.sampling import device_sampler
from draftwire_core.engine.sampling.coupled_sampler import sample, top_candidates
from draftwire_core.engine.sampling.device_sampler import (
    DeviceCandidates,
    candidates,
    candidates_on_device,
    draw,
    draw_candidates,
)
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams


def batch_of(temperatures: list[float]) -> SamplingBatch:
    params = [SamplingParams(temperature=each, seed=3 + 2**63 * (row % 2)) for row, each in enumerate(temperatures)]
    return SamplingBatch.build(params, [7 * row for row in range(len(params))])


def rows(vocabulary: int, spread: float, dtype: torch.dtype) -> tuple[SamplingBatch, torch.Tensor]:
    batch = batch_of([0.0, 0.3, 1.0, 2.0, 0.0, 1.0, 100.0] * 4)
    logits = torch.randn(len(batch), vocabulary, generator=torch.Generator().manual_seed(1))
    return batch, (spread * logits).to(dtype)


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("vocabulary", [50, 64, 300, 4096, 9001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_settled_rows_are_what_the_sampler_draws(dtype: torch.dtype, vocabulary: int, spread: float) -> None:
    batch, logits = rows(vocabulary, spread, dtype)
    expected = sample(logits, batch).token_ids
    token_ids, settled = draw(logits, batch)
    assert torch.equal(token_ids[settled], expected[settled])
    # In a flatter distribution, more blocks may hold the winner.
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


@pytest.mark.parametrize("spread", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("vocabulary", [3, 50, 64, 300, 9001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_settled_candidates_are_those_of_the_sampler(dtype: torch.dtype, vocabulary: int, spread: float) -> None:
    batch, logits = rows(vocabulary, spread, dtype)
    logits[3, 2:] = -torch.inf
    logits[4, 0] = torch.nan
    expected = top_candidates(logits, batch, 4)
    for opened, least in ((64, 0.6), (1, 0.0)):
        token_ids, log_probs, settled = draw_candidates(logits, batch, 4, opened)
        assert settled.float().mean() >= (1.0 if vocabulary <= 64 else least)
        assert torch.equal(token_ids[settled], expected.token_ids[settled])
        # The compiled sampler's logarithm may differ in the last bit.
        torch.testing.assert_close(log_probs[settled], expected.log_probs[settled], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("top_k", [0, 5], ids=["unfiltered", "filtered"])
def test_candidates_that_are_not_settled_are_found_again(monkeypatch: pytest.MonkeyPatch, top_k: int) -> None:
    def half(logits: torch.Tensor, batch: SamplingBatch, k: int) -> DeviceCandidates:
        found = draw_candidates(logits, batch, k)
        unsettled = torch.arange(len(batch)) % 2 == 0
        return DeviceCandidates(found.token_ids.masked_fill(unsettled.unsqueeze(1), 299), found.log_probs, ~unsettled)

    params = [SamplingParams(temperature=each, seed=5, top_k=top_k) for each in (0.0, 0.5, 1.0, 2.0, 1.0)]
    batch = SamplingBatch.build(params, range(5))
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(1))
    expected = candidates(logits, batch, 6)

    def check() -> None:
        token_ids, log_probs = candidates_on_device(logits, batch, 6)
        assert token_ids == expected.token_ids
        torch.testing.assert_close(torch.tensor(log_probs), torch.tensor(expected.log_probs), rtol=1e-6, atol=1e-6)

    check()
    monkeypatch.setattr(device_sampler, "draw_candidates", half)
    check()
