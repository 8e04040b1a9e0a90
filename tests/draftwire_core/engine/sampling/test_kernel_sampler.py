"""The sampler's kernels, in Triton's interpreter, draw the tokens of the reference sampler."""

import random

import pytest
import torch

from draftwire_core.engine.acceptance.coupled import walk_on_device
from draftwire_core.engine.sampling import kernel_sampler
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.kernel_sampler import (
    SLICE,
    KernelSampler,
    KernelsUnusableError,
    draws_as_the_host,
    usable_sampler,
)
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.token_filters import block_tops, thresholds
from tests.harness.engine.pretended_gpu import DEVICE, pretended_gpu
from tests.harness.engine.random_work import random_job
from tests.harness.kernels.drawn import drawn_by_kernels, numbers_of
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

pytest.importorskip("triton")
prepare_interpreter()

CPU = torch.device("cpu")
PARAMS = [
    SamplingParams(temperature=0.0, seed=5),
    SamplingParams(temperature=1.0, seed=0),
    SamplingParams(temperature=0.7, seed=2**64 - 1),
    SamplingParams(temperature=1e-4, seed=2**63),
    SamplingParams(temperature=1.9, seed=3**40),
    SamplingParams(temperature=100.0, seed=1),
]
POSITIONS = [0, 1, 2**32 - 1, 2**31, 4096, 77]


def expected(logits: torch.Tensor, params: list[SamplingParams], positions: list[int]) -> list[int]:
    tokens: list[int] = sample(logits, SamplingBatch.build(params, positions)).token_ids.tolist()
    return tokens


DTYPES = [torch.float32, torch.bfloat16, torch.float16]
VOCABULARIES = [1, 63, 300, SLICE, SLICE + 1, 3 * SLICE - 7]


@pytest.mark.parametrize(
    ("vocabulary", "dtype"),
    [(each, DTYPES[place % 3]) for place, each in enumerate(VOCABULARIES)] + [(VOCABULARIES[-1], DTYPES[0])],
)
def test_random_logits(dtype: torch.dtype, vocabulary: int) -> None:
    check_random_logits(dtype, vocabulary)


def check_random_logits(dtype: torch.dtype, vocabulary: int) -> None:
    scale = random.Random(vocabulary).choice([0.1, 3.0, 12.0])
    logits = (scale * torch.randn(6, vocabulary, generator=torch.Generator().manual_seed(vocabulary))).to(dtype)
    assert drawn_by_kernels(logits, PARAMS, POSITIONS) == expected(logits, PARAMS, POSITIONS)


@pytest.mark.parametrize("seed", range(4))
def test_equal_logits_and_tokens_that_are_masked_out(seed: int) -> None:
    """The lowest id wins among equal scores, in one slice of the vocabulary or in two."""
    rng = torch.Generator().manual_seed(seed)
    logits = torch.randint(-2, 2, (6, 2 * SLICE + 50), generator=rng).float()
    logits[torch.rand(logits.shape, generator=rng) < 0.5] = -torch.inf
    logits[0] = -torch.inf
    logits[0, [SLICE - 1, SLICE, 2 * SLICE + 1]] = 1.5
    logits[3, :SLICE] = -torch.inf
    params = [PARAMS[0], PARAMS[0], *PARAMS[1:5]]
    found = drawn_by_kernels(logits, params, POSITIONS)
    assert found[0] == SLICE - 1 and found == expected(logits, params, POSITIONS)


def test_equal_scores_under_noise() -> None:
    """At a high temperature nothing counts but the noise; at logits beyond 2^24, the noise is lost."""
    logits = torch.full((2, SLICE + 9), 2.0**30)
    params = [SamplingParams(temperature=1.0, seed=seed) for seed in (1, 2)]
    assert drawn_by_kernels(logits, params, [0, 0]) == expected(logits, params, [0, 0]) == [0, 0]


FILTERS = {
    "one filter a row": [
        SamplingParams(top_k=1, seed=1),
        SamplingParams(top_k=7, temperature=0.7, seed=2),
        SamplingParams(top_k=10_000, seed=3),
        SamplingParams(top_p=0.5, seed=4),
        SamplingParams(min_p=0.3, seed=7),
        SamplingParams(min_p=1.0, seed=8),
    ],
    "several, or none": [
        SamplingParams(top_p=0.97, temperature=1.7, seed=5),
        SamplingParams(top_k=40, top_p=0.8, seed=6),
        SamplingParams(top_k=20, top_p=0.9, min_p=0.05, seed=9),
        SamplingParams(top_p=0.9, temperature=0.0),
        SamplingParams(seed=10),
    ],
}


@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize(("vocabulary", "scale"), [(5, 0.0), (300, 6.0), (SLICE + 77, 0.5)])
def test_filters(vocabulary: int, scale: float, filters: str) -> None:
    check_filters(vocabulary, scale, filters)


@pytest.mark.slow
class TestEveryCombination:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("vocabulary", VOCABULARIES)
    def test_random_logits(self, dtype: torch.dtype, vocabulary: int) -> None:
        check_random_logits(dtype, vocabulary)

    @pytest.mark.parametrize("filters", FILTERS)
    @pytest.mark.parametrize("scale", [0.0, 0.5, 6.0])
    @pytest.mark.parametrize("vocabulary", [5, 300, SLICE + 77])
    def test_filters(self, vocabulary: int, scale: float, filters: str) -> None:
        check_filters(vocabulary, scale, filters)


def check_filters(vocabulary: int, scale: float, filters: str) -> None:
    params = FILTERS[filters]
    logits = scale * torch.randn(len(params), vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    logits[:, 1] = logits[:, 0]  # tied
    logits[:, 3] = -torch.inf
    positions = list(range(len(params)))
    assert drawn_by_kernels(logits, params, positions) == expected(logits, params, positions)


@pytest.mark.parametrize(
    "params", [SamplingParams(top_p=0.9), SamplingParams(top_k=3), SamplingParams(top_k=9, top_p=0.5)]
)
def test_thresholds_are_those_of_the_reference(params: SamplingParams) -> None:
    """Values of the row: the least one that is kept."""
    logits = (4 * torch.randn(3, 900, generator=torch.Generator().manual_seed(3))).round(decimals=1)
    batch = SamplingBatch.build([params] * 3, [0, 1, 2])
    _, least = KernelSampler()._filter(logits, numbers_of([params] * 3, [0, 1, 2]))
    assert torch.equal(least, thresholds(logits, block_tops(logits), batch))


def test_bad_rows_do_not_spoil_others() -> None:
    logits = torch.randn(6, 2 * SLICE + 3)
    logits[0, 5], logits[1, -1], logits[2, SLICE] = torch.nan, torch.inf, torch.nan
    logits[3] = -torch.inf
    logits[4, 2:] = -torch.inf
    found = drawn_by_kernels(logits, PARAMS, POSITIONS)
    assert found == expected(logits, PARAMS, POSITIONS)
    assert found[:4] == [-1] * 4 and found[4] in (0, 1) and found[5] >= 0


def test_logits_that_overflow_when_scaled() -> None:
    params = [SamplingParams(temperature=1e-4, seed=3)] * 3
    logits = torch.full((3, 80), -3e38)
    logits[1, 7], logits[2, [8, 60]] = 1.0, 3e38
    assert drawn_by_kernels(logits, params, [0, 1, 2]) == expected(logits, params, [0, 1, 2]) == [-1, 7, 8]


@pytest.mark.parametrize("rows", [1, 2, 17, 40])
def test_a_token_does_not_depend_on_the_batch(rows: int) -> None:
    """Whatever the number of rows, their order, and which rows of the logits they are."""
    rng = random.Random(rows)
    logits = torch.randn(64, 200)
    params = [SamplingParams(temperature=rng.choice([0.0, 0.8, 1.2]), seed=rng.getrandbits(64)) for _ in range(64)]
    chosen = rng.sample(range(64), rows)
    room = rows + rng.randrange(3)
    numbers = numbers_of([params[row] for row in chosen], chosen, rows=chosen, room=room)
    drawn, _ = KernelSampler().draw(logits, numbers)
    assert drawn[:rows].tolist() == [expected(logits[row : row + 1], [params[row]], [row])[0] for row in chosen]
    assert drawn[rows:].tolist() == [-1] * (room - rows)


def test_logits_whose_rows_are_not_adjacent() -> None:
    logits = torch.randn(6, 500)[:, :300]
    assert drawn_by_kernels(logits, PARAMS, POSITIONS) == expected(logits, PARAMS, POSITIONS)


def test_rows_with_typical_p_are_left_out() -> None:
    params = [PARAMS[1], SamplingParams(typical_p=0.5), SamplingParams(temperature=0.0, top_k=3)]
    logits = torch.randn(3, 100)
    found = drawn_by_kernels(logits, params, [0, 1, 2])
    assert found[1] == -1 and [found[0], found[2]] == expected(logits, params, [0, 1, 2])[::2]  # greedy: no filters


@pytest.mark.parametrize("seed", range(3))
def test_the_path_of_the_tokens(seed: int) -> None:
    """Several trees side by side, in which few tokens make long paths likely."""
    rng = random.Random(seed)
    tokens: list[int] = []
    parents: list[int] = []
    for number in range(3):
        first, rows = len(tokens), random_job(rng, number).tree_rows()
        tokens += rows.tokens
        parents += [first + max(0, parent) for parent in rows.parents]
    count = len(tokens)
    logits = torch.randn(count, 70)
    logits[:, :3] += 8
    params = [rng.choice(PARAMS[:3]) for _ in tokens]
    numbers = numbers_of(params, range(count), tree=(tokens, parents), room=count + 5)
    drawn, path = KernelSampler().draw(logits, numbers)
    walked = walk_on_device(drawn[:count].long(), torch.tensor(tokens), torch.tensor(parents))
    assert path[:count].bool().tolist() == walked.tolist()
    assert walked.sum() > 3 or seed


def test_a_gpu_on_which_they_do_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Triton finds no C compiler for its launchers."""

    def failing(*_: object) -> None:
        raise RuntimeError("Failed to find C compiler. Please specify\nsomething")

    with pretended_gpu():
        assert isinstance(usable_sampler(DEVICE), KernelSampler)
        monkeypatch.setattr(KernelSampler, "draw", failing)
        with pytest.raises(KernelsUnusableError, match=r"^the kernels do not run: Failed to find C compiler\. [^\n]*$"):
            usable_sampler(DEVICE)
        monkeypatch.setattr(kernel_sampler, "draws_as_the_host", lambda *_: False)
        with pytest.raises(KernelsUnusableError, match="other tokens"):
            usable_sampler(DEVICE)


@pytest.mark.slow
class TestTheTrial:
    def test_the_trial_of_a_device(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sampler = KernelSampler()
        assert draws_as_the_host(sampler, CPU)
        with pytest.raises(KernelsUnusableError, match="for GPUs"):
            usable_sampler(CPU)
        draw = KernelSampler.draw
        monkeypatch.setattr(KernelSampler, "draw", lambda *args: draw(*args) + 1)
        assert not draws_as_the_host(sampler, CPU)
