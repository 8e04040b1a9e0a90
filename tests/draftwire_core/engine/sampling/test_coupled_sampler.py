"""sample() and top_candidates() against brute force and exact float64 distributions, bit by bit by row."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from draftwire_core.engine.kernels.library import library
from draftwire_core.engine.sampling import gumbel
from draftwire_core.engine.sampling.coupled_sampler import SamplingBatch, sample, top_candidates
from draftwire_core.engine.sampling.gumbel import gumbel_at
from draftwire_core.engine.sampling.sampling_params import SamplingParams


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Other tests may share the machine: waiting for a busy core made these tests twice as slow."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


FILTERS = [
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(top_k=7),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.2),
    SamplingParams(temperature=1.3, top_k=40, top_p=0.9, min_p=0.05),
    SamplingParams(typical_p=0.3),
    SamplingParams(temperature=1.3, top_k=40, top_p=0.95, min_p=0.01, typical_p=0.7),
]


def logits_of(rows: int, vocabulary: int, seed: int, scale: float = 2.0) -> Tensor:
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * scale


def all_noise(batch: SamplingBatch, vocabulary: int) -> Tensor:
    noise = gumbel_at(batch.seeds, batch.positions, torch.arange(vocabulary).expand(len(batch), vocabulary))
    return noise.masked_fill(batch.greedy.unsqueeze(1), 0)


def filtered_softmax(logits: Tensor, params: SamplingParams) -> np.ndarray:
    """Returns the distribution that a request asks for, in float64, by sorting and masking; assumes no ties."""
    scaled = logits.double().numpy() / params.temperature
    order = np.argsort(-scaled)
    probability = np.exp(scaled - scaled.max())[order]
    if params.top_k:
        probability[params.top_k :] = 0
    probability /= probability.sum()
    if params.top_p < 1:
        probability[np.searchsorted(np.cumsum(probability), params.top_p) + 1 :] = 0
    probability[probability < params.min_p * probability[0]] = 0
    if params.typical_p < 1:
        probability /= probability.sum()
        with np.errstate(divide="ignore", invalid="ignore"):
            surprise = -np.log(probability)
            nearest = np.argsort(np.abs(surprise - np.nansum(surprise * probability)))
        probability[nearest[np.searchsorted(np.cumsum(probability[nearest]), params.typical_p) + 1 :]] = 0
    result = np.empty_like(probability)
    result[order] = probability / probability.sum()
    return result


@pytest.fixture(params=["compiled", "torch"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two implementations, which draw the same tokens."""
    if request.param == "torch":
        monkeypatch.setattr("draftwire_core.engine.sampling.coupled_sampler.fits", lambda logits: False)
    elif library() is None:
        pytest.skip("the compiled library was not built")
    return str(request.param)


def chi_square_of(params: SamplingParams, draws: int = 8_000, vocabulary: int = 150) -> float:
    """Returns the p-value of `draws` tokens, at as many positions, against the exact distribution."""
    logits = logits_of(1, vocabulary, seed=11)
    batch = SamplingBatch.build([params] * draws, range(draws))
    tokens = sample(logits.expand(draws, vocabulary), batch).token_ids
    expected = filtered_softmax(logits[0], params) * draws
    counts = np.bincount(tokens.numpy(), minlength=vocabulary)
    assert counts[expected == 0].sum() == 0, "a token that the filters drop was drawn"
    rare = expected < 5
    counts, expected = (np.append(x[~rare], x[rare].sum()) for x in (counts, expected))
    keep = expected > 0
    return float(stats.chisquare(counts[keep], expected[keep]).pvalue)


@pytest.mark.parametrize("params", FILTERS, ids=str)
def test_draws_follow_the_distribution_asked_for(params: SamplingParams) -> None:
    assert chi_square_of(params) > 1e-3


def test_chi_square_catches_a_planted_bias(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """The upper half of every block never attains the block's maximum."""
    if way == "compiled":
        pytest.skip("no fault can be planted in compiled code; it is compared with the other way")
    exact = gumbel.winners_and_waits

    def biased(*args: Tensor) -> tuple[Tensor, Tensor]:
        winners, waits = exact(*args)
        return winners // 2, waits

    monkeypatch.setattr(gumbel, "winners_and_waits", biased)
    monkeypatch.setattr("draftwire_core.engine.sampling.coupled_sampler.winners_and_waits", biased)
    assert chi_square_of(SamplingParams()) < 1e-6


def check_against_all_noise(vocabulary: int, scale: float) -> None:
    logits = logits_of(4, vocabulary, seed=vocabulary, scale=scale)
    params = [SamplingParams(seed=2**63 + i, temperature=t) for i, t in enumerate((1.0, 0.3, 2.0, 0.0))]
    batch = SamplingBatch.build(params, [0, 5, 4_000_000_000, 7])
    scores = logits / batch.temperatures + all_noise(batch, vocabulary)
    assert torch.equal(sample(logits, batch).token_ids, scores.argmax(1))
    for k in (1, 9):
        got = top_candidates(logits, batch, k)
        best, order = scores.sort(dim=1, descending=True, stable=True)
        n = min(k, vocabulary)
        assert torch.equal(got.token_ids[:, :n], order[:, :n])
        assert torch.equal(got.scores[:, :n], best[:, :n])
        exact = (logits.double() / batch.temperatures).log_softmax(1).gather(1, order[:, :n])
        torch.testing.assert_close(got.log_probs[:, :n].double(), exact, rtol=0, atol=3e-5)  # float32 z / T up to 250
        assert (got.token_ids[:, n:] == -1).all() and (got.log_probs[:, n:] == -torch.inf).all()


VOCABULARIES = [1, 5, 63, 64, 65, 1000, 50_257, 151_936]
SCALES = [0.0, 1.0, 4.0, 15.0]


@pytest.mark.parametrize(
    ("vocabulary", "scale"), [*zip(VOCABULARIES[:-1], SCALES * 2, strict=False), (1000, 0.0), (65, 15.0)]
)
def test_equals_the_argmax_over_all_noise(vocabulary: int, scale: float) -> None:
    check_against_all_noise(vocabulary, scale)


@pytest.mark.slow
class TestAllVocabularies:
    @pytest.mark.parametrize("vocabulary", VOCABULARIES)
    @pytest.mark.parametrize("scale", SCALES)
    def test_equals_the_argmax_over_all_noise(self, vocabulary: int, scale: float) -> None:
        check_against_all_noise(vocabulary, scale)


params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.2, 0.9, 1.0, 3.0]),
    top_k=st.sampled_from([0, 1, 2, 50, 300, 2000]),
    top_p=st.sampled_from([1e-6, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    typical_p=st.sampled_from([1e-6, 0.2, 0.9, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(params_strategy, min_size=1, max_size=12), st.integers(1, 1500), st.data())
def test_a_row_does_not_depend_on_the_others(
    params: list[SamplingParams], vocabulary: int, data: st.DataObject
) -> None:
    """Law 1, bit by bit: any subset of the rows in any order gives each row the same result."""
    rows = len(params)
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))  # bfloat16: many ties
    logits = logits_of(rows, vocabulary, seed=data.draw(st.integers(0, 1000)), scale=3).to(dtype)
    positions = data.draw(st.lists(st.integers(0, 100_000), min_size=rows, max_size=rows))
    batch = SamplingBatch.build(params, positions)
    tokens = sample(logits, batch).token_ids
    candidates = top_candidates(logits, batch, 4)
    assert torch.equal(tokens, candidates.token_ids[:, 0])
    subset = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows))
    part = SamplingBatch.build([params[i] for i in subset], [positions[i] for i in subset])
    assert torch.equal(sample(logits[subset], part).token_ids, tokens[subset])
    again = top_candidates(logits[subset], part, 4)
    for name in ("token_ids", "scores", "log_probs"):
        assert torch.equal(getattr(again, name), getattr(candidates, name)[subset]), name


def test_rows_of_a_large_vocabulary_one_by_one_and_together() -> None:
    params = [replace(p, seed=i, temperature=0.8, min_p=0.0) for i, p in enumerate(FILTERS * 2)]
    rows = len(params)
    logits = logits_of(rows, 151_936, seed=3)
    batch = SamplingBatch.build(params, range(rows))
    together = top_candidates(logits, batch, 3)
    for i in range(rows):
        alone = top_candidates(logits[i : i + 1].clone(), SamplingBatch.build([params[i]], [i]), 3)
        assert torch.equal(alone.token_ids[0], together.token_ids[i])
        assert torch.equal(alone.log_probs[0], together.log_probs[i])


@pytest.mark.parametrize("params", FILTERS, ids=str)
@pytest.mark.parametrize("vocabulary", [300, 20_001])
def test_filters_keep_exactly_the_tokens_they_should(params: SamplingParams, vocabulary: int) -> None:
    logits = logits_of(1, vocabulary, seed=21)
    kept = set(np.flatnonzero(filtered_softmax(logits[0], params)).tolist())
    got = top_candidates(logits, SamplingBatch.build([params], [3]), min(vocabulary, len(kept) + 5))
    assert set(got.token_ids[0].tolist()) - {-1} == kept


def test_tokens_tied_with_the_last_one_kept_stay() -> None:
    logits = torch.tensor([[3.0, 2.0, 2.0, 2.0, 1.0]] * 3)
    params = [SamplingParams(top_k=2), SamplingParams(top_p=0.6), SamplingParams(top_k=2, top_p=0.99)]
    got = top_candidates(logits, SamplingBatch.build(params, [0, 0, 0]), 5)
    assert [sorted(set(row) - {-1}) for row in got.token_ids.tolist()] == [[0, 1, 2, 3]] * 3


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(2, 1000)
    logits[1, [700, 300, 301]] = 5
    batch = SamplingBatch.build([SamplingParams(temperature=0), SamplingParams(temperature=0, top_k=3)], [0, 1])
    assert sample(logits, batch).token_ids.tolist() == [0, 300]
    assert top_candidates(logits, batch, 3).token_ids.tolist() == [[0, 1, 2], [300, 301, 700]]


def test_padding_beyond_the_vocabulary_never_comes_out() -> None:
    logits = logits_of(8, 200, seed=4)
    logits[:, 130:] = 50
    batch = SamplingBatch.build([SamplingParams(seed=i, temperature=i % 2) for i in range(8)], range(8))
    assert torch.equal(sample(logits, batch, vocab_size=130).token_ids, sample(logits[:, :130], batch).token_ids)
    assert (top_candidates(logits, batch, 5, vocab_size=130).token_ids < 130).all()


@pytest.mark.parametrize("params", [*FILTERS, SamplingParams(temperature=0)], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_bad_rows_are_named_and_harm_no_other(params: SamplingParams, value: float) -> None:
    logits = logits_of(5, 500, seed=6)
    batch = SamplingBatch.build([params] * 5, range(5))
    clean = top_candidates(logits, batch, 4)
    logits[1, 77], logits[3] = value, -torch.inf
    for tokens, bad in (
        ((s := sample(logits, batch)).token_ids, s.bad_rows),
        ((c := top_candidates(logits, batch, 4)).token_ids, c.bad_rows),
    ):
        assert bad.tolist() == [False, True, False, True, False]
        assert (tokens[[1, 3]] == -1).all()
    assert torch.equal(c.token_ids[::2], clean.token_ids[::2])
    assert torch.equal(s.token_ids[::2], clean.token_ids[::2, 0])


@pytest.mark.parametrize("params", [*FILTERS, SamplingParams(temperature=0)], ids=str)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_bad_row_by_itself(params: SamplingParams, value: float) -> None:
    """A single request whose constraints leave no token, for example."""
    logits, batch = torch.full((1, 500), value), SamplingBatch.build([params], [3])
    assert sample(logits, batch).token_ids.tolist() == [-1]
    assert top_candidates(logits, batch, 4).token_ids.tolist() == [[-1] * 4]


def test_masked_tokens_never_come_out() -> None:
    logits = torch.full((3, 1000), -torch.inf)
    logits[:, [3, 900]] = torch.tensor([0.0, 1.0])
    params = [SamplingParams(), SamplingParams(temperature=0), SamplingParams(temperature=2, top_k=50, top_p=0.999)]
    got = top_candidates(logits, SamplingBatch.build(params, [1, 2, 3]), 4)
    assert [sorted(row) for row in got.token_ids.tolist()] == [[-1, -1, 3, 900]] * 3
    assert not got.bad_rows.any()


def test_an_empty_batch() -> None:
    batch = SamplingBatch.build([], [])
    assert sample(torch.zeros(0, 100), batch).token_ids.shape == (0,)
    assert top_candidates(torch.zeros(0, 100), batch, 3).token_ids.shape == (0, 3)
