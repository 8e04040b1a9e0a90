"""Thresholds of the filters: their definition, token by token, in any batch and with any number of threads."""

import math
import random
from collections.abc import Iterator

import pytest
import torch

from draftwire_core.engine.sampling import token_filters
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.token_filters import block_tops, mass_of, thresholds

VOCABULARY = 20_011
"""More than a thread takes of a sum."""
NEARLY_EQUAL = [-(2.0**-30) * n for n in range(10)]
"""Logits that differ, and whose probabilities are equal to the last bit: each is a tenth of the mass, exactly."""


def least(logits: torch.Tensor, params: list[SamplingParams]) -> torch.Tensor:
    batch = SamplingBatch.build(params, range(len(params)), torch.device("cpu"))
    found = thresholds(logits, block_tops(logits), batch)
    return torch.full((len(params),), -torch.inf) if found is None else found


def defined(logits: torch.Tensor, params: SamplingParams) -> float:
    """Returns the threshold of one row by the definition: its tokens are ranked and added up one by one."""
    scaled = logits.float() / torch.tensor(params.temperature)
    masses = mass_of(scaled - scaled.max()).tolist()
    ranked = sorted(zip(scaled.tolist(), masses, strict=True), reverse=True)
    found = -math.inf
    if 0 < params.top_k < len(ranked):
        found = ranked[params.top_k - 1][0]
        ranked = [(value, mass) for value, mass in ranked if value >= found]
    if params.top_p < 1:
        target, running = params.top_p * float(sum(mass for _, mass in ranked)), 0
        for value, mass in ranked:
            running += mass
            if running >= target:
                found = value
                break
    if params.min_p > 0:
        found = max(found, (scaled.max() + torch.tensor(params.min_p, dtype=torch.float64).log().float()).item())
    return found


def drawn_params(rng: random.Random, row: int, most: int) -> SamplingParams:
    """Returns the filters of a row, of any kind; top_k up to `most`."""
    share = rng.choice((0.125, 0.25, 0.5, 0.75, rng.uniform(0.05, 0.999)))
    fields = rng.choice(
        (
            {"top_p": share},
            {"top_k": rng.randrange(1, most)},
            {"top_k": rng.randrange(1, most), "top_p": share},
            {"min_p": rng.choice((1.0, rng.uniform(0.001, 0.9)))},
            {"min_p": rng.uniform(0.001, 0.5), "top_p": share},
            {"min_p": rng.uniform(0.001, 0.5), "top_k": rng.randrange(1, most)},
            {},
        )
    )
    return SamplingParams(temperature=rng.choice((1.0, rng.uniform(0.3, 2.0))), seed=row, **fields)


def drawn_logits(rng: random.Random, rows: int, vocabulary: int) -> torch.Tensor:
    """Returns rows of one shape: steep, so that most tokens have no mass; flat; or with many ties."""
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(rng.getrandbits(32)))
    shape = rng.choice(("steep", "flat", "tied", "equal"))
    if shape == "steep":
        return logits * 15
    if shape == "flat":
        return logits * 0.1
    return logits.round() if shape == "tied" else torch.zeros(rows, vocabulary)


@pytest.mark.parametrize("seed", range(12))
def test_they_are_those_of_the_definition(seed: int) -> None:
    """In a batch with other filters, some of which look at more ranks; the definition looks at one row."""
    rng = random.Random(seed)
    for vocabulary in (1, 5, 64, 65, 130, 700):
        rows = rng.randrange(1, 12)
        logits = drawn_logits(rng, rows, vocabulary)
        params = [drawn_params(rng, row, rng.choice((3, 9, vocabulary + 2))) for row in range(rows)]
        assert least(logits, params).tolist() == [defined(logits[row], params[row]) for row in range(rows)]


def test_a_gpu_takes_no_more_rows_at_a_time_than_there_is_memory_for() -> None:
    """A step may have a thousand rows; their temporaries take up to 40 bytes a value."""
    logits = torch.empty(1024, 152_064, device="meta")
    assert 40 * token_filters.rows_a_pass(logits) * logits.shape[1] < 1 << 30
    assert token_filters.rows_a_pass(torch.empty(2, 1 << 30, device="meta")) == 1


def test_rows_are_taken_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_filters, "CPU_CHUNK", 2 * token_filters.BINS)
    logits = drawn_logits(random.Random(1), 5, 300)
    params = [SamplingParams(top_p=0.2 + row / 10) for row in range(5)]
    assert least(logits, params).tolist() == [defined(logits[row], params[row]) for row in range(5)]


@pytest.mark.parametrize("others", [[], [SamplingParams(top_k=16, top_p=0.9)]], ids=["alone", "with more ranks"])
@pytest.mark.parametrize("top_k", [0, 10, 11])
def test_the_last_token_kept_reaches_the_share_exactly(top_k: int, others: list[SamplingParams]) -> None:
    """top_p keeps the fewest tokens whose probability reaches the share, not those that exceed it."""
    logits = torch.full((1 + len(others), 200), -40.0)
    logits[:, 60:70] = torch.tensor(NEARLY_EQUAL)
    if top_k == 11:  # the last of them has no mass
        logits[:, 0] = -39.0
    for kept in range(1, 10):
        params = [SamplingParams(top_p=kept / 10, top_k=top_k), *others]
        assert least(logits, params)[0] == NEARLY_EQUAL[kept - 1]


def test_ties_beyond_k_count() -> None:
    """Of k = 3, the third is tied with two more: top_p is a share of the five."""
    logits = torch.tensor([[0.0, NEARLY_EQUAL[1], *[NEARLY_EQUAL[2]] * 3, -40.0]])
    for share, kept in ((0.2, 0), (0.4, 1), (0.41, 2), (0.9, 2)):
        assert least(logits, [SamplingParams(top_k=3, top_p=share)]) == NEARLY_EQUAL[kept]


def test_tokens_without_mass_are_kept_by_top_k_alone() -> None:
    """A row without top_p keeps its k tokens next to one that has it."""
    logits = torch.tensor([[0.0, -1.0, -50.0, -60.0]] * 2)
    params = [SamplingParams(top_k=3), SamplingParams(top_k=3, top_p=0.9999)]
    assert least(logits, params).tolist() == [-50.0, -1.0]


def test_the_greatest_of_several_thresholds_holds() -> None:
    logits = torch.tensor([[0.0, -1.0, -2.0, -3.0, -9.0]] * 3)
    params = [
        SamplingParams(min_p=0.5, top_k=3),
        SamplingParams(min_p=1e-3, top_k=3),
        SamplingParams(min_p=1e-3, top_p=0.9),
    ]
    found = least(logits, params).tolist()
    assert found == [pytest.approx(math.log(0.5)), -2.0, -2.0]


def some(count: int, seed: int) -> tuple[torch.Tensor, list[SamplingParams]]:
    """Rows with filters of all kinds over a large vocabulary: every second row is flat, with few ranks."""
    rng = random.Random(seed)
    kinds = (
        lambda: {"top_p": rng.uniform(0.05, 0.999)},
        lambda: {"top_k": rng.randrange(1, 200)},
        lambda: {"top_k": rng.randrange(2, 200), "top_p": rng.uniform(0.05, 0.999)},
        lambda: {"min_p": rng.uniform(0.001, 0.5)},
        lambda: {"min_p": rng.uniform(0.001, 0.5), "top_p": rng.uniform(0.05, 0.999)},
    )
    params = [SamplingParams(temperature=rng.uniform(0.5, 2.0), seed=row, **kinds[row % 5]()) for row in range(count)]
    logits = torch.randn(count, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 4
    logits[::2] *= 0.01
    return logits, params


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_a_threshold_does_not_depend_on_the_batch_or_threads() -> None:
    logits, params = some(20, seed=1)
    expected = least(logits, params)
    assert bool(expected.isfinite().all()) and len(set(expected.tolist())) == 20
    assert expected.tolist() == [defined(logits[row], params[row]) for row in range(20)]
    for count in (1, 2, 4):
        torch.set_num_threads(count)
        assert torch.equal(least(logits, params), expected)
        for row in range(20):
            assert torch.equal(least(logits[row : row + 1], params[row : row + 1]), expected[row : row + 1])
        some_rows = random.Random(count).sample(range(20), 7)
        assert torch.equal(least(logits[some_rows], [params[row] for row in some_rows]), expected[some_rows])
