"""typical_p against transformers' own, and in a batch."""

import pytest
import torch
from transformers import TypicalLogitsWarper

from draftwire_core.engine.kernels.library import library
from draftwire_core.engine.sampling import compiled_sampler
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.distributions import probabilities, scaled_logits
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams


def logits_of(rows: int, vocabulary: int, scale: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def batch_of(rows: int, **fields: float) -> SamplingBatch:
    return SamplingBatch.build([SamplingParams(seed=row, **fields) for row in range(rows)], range(rows))


@pytest.mark.parametrize("typical_p", [0.01, 0.2, 0.5, 0.95, 0.999])
@pytest.mark.parametrize("scale", [0.3, 2.0, 8.0])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_keeps_what_the_library_keeps(typical_p: float, scale: float, temperature: float) -> None:
    logits = logits_of(8, 3001, scale)
    kept = scaled_logits(logits, batch_of(8, typical_p=typical_p, temperature=temperature)).isfinite()
    # In float64: the errors of transformers' own float32 sums exceed the distances between tokens.
    expected = TypicalLogitsWarper(typical_p)(None, logits.double() / temperature).isfinite()
    assert torch.equal(kept, expected)


def test_the_likeliest_token_may_go() -> None:
    logits = logits_of(8, 3001, 2.0)
    kept = scaled_logits(logits, batch_of(8, typical_p=0.2)).isfinite()
    assert not kept.gather(1, logits.argmax(1, keepdim=True)).any()


def test_what_other_filters_leave_is_what_it_looks_at() -> None:
    logits = logits_of(6, 500, 2.0)
    found = scaled_logits(logits, batch_of(6, top_k=40, min_p=0.02, typical_p=0.5))
    left = scaled_logits(logits, batch_of(6, top_k=40, min_p=0.02))
    assert torch.equal(found.isfinite(), TypicalLogitsWarper(0.5)(None, left.double()).isfinite())


def test_tokens_as_near_as_the_last_one_stay() -> None:
    logits = torch.tensor([[1.0, 0.0, 0.0, 0.0, -40.0]])
    assert scaled_logits(logits, batch_of(1, typical_p=0.01)).isfinite().tolist() == [[False, True, True, True, False]]


def test_all_alike() -> None:
    found = probabilities(torch.zeros(2, 100), batch_of(2, typical_p=0.5))
    assert (found == 0.01).all()


@pytest.mark.parametrize("way", ["compiled", "torch"])
def test_a_row_is_drawn_alike_in_any_batch(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "compiled" and library() is None:
        pytest.skip("the compiled library was not built")
    if way == "torch":
        monkeypatch.setattr("draftwire_core.engine.sampling.coupled_sampler.fits", lambda logits: False)
    logits = logits_of(40, 4097, 3.0)
    params = [SamplingParams(seed=row, typical_p=0.3 if row % 3 else 1.0, top_p=0.9) for row in range(40)]
    together = sample(logits, SamplingBatch.build(params, range(40))).token_ids
    alone = [sample(logits[row : row + 1], SamplingBatch.build([params[row]], [row])).token_ids for row in range(40)]
    assert torch.equal(torch.cat(alone), together)


def test_both_ways_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of(200, 1000, 2.0)
    batch = batch_of(200, typical_p=0.4)
    assert compiled_sampler.fits(logits)
    compiled = sample(logits, batch).token_ids
    monkeypatch.setattr("draftwire_core.engine.sampling.coupled_sampler.fits", lambda logits: False)
    assert torch.equal(sample(logits, batch).token_ids, compiled)
