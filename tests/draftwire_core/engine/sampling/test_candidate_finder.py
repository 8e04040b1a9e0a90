"""The candidates that drafters find by the sampler's kernels, in Triton's interpreter, are the reference's."""

import random

import pytest
import torch

from draftwire_core.engine.sampling.candidate_finder import candidate_finder, candidates_by_kernels
from draftwire_core.engine.sampling.device_sampler import CandidateDraw, candidates, candidates_on_device
from draftwire_core.engine.sampling.kernel_sampler import SLICE, KernelSampler
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.engine.pretended_gpu import DEVICE, GpuTensor, pretended_gpu
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

CPU = torch.device("cpu")
PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.6, seed=2**64 - 1),
    SamplingParams(temperature=1.4, seed=2**63),
]


def check(logits: torch.Tensor, params: list[SamplingParams], k: int) -> CandidateDraw:
    pytest.importorskip("triton")
    prepare_interpreter()
    batch = SamplingBatch.build(params, [100 * row for row in range(len(params))])
    found, expected = candidates_by_kernels(KernelSampler(), logits, batch, k), candidates(logits, batch, k)
    assert found.token_ids == expected.token_ids
    for ours, theirs in zip(found.log_probs, expected.log_probs, strict=True):
        assert ours == pytest.approx(theirs, abs=2e-5)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocabulary", "k"), [(300, 3), (SLICE + 1, 4), (2 * SLICE + 500, 8), (5, 3)])
def test_random_logits(dtype: torch.dtype, vocabulary: int, k: int) -> None:
    logits = (random.Random(vocabulary).choice([0.5, 4.0]) * torch.randn(4, vocabulary)).to(dtype)
    check(logits, PARAMS, k)


def test_equal_logits_and_masked_ones() -> None:
    logits = torch.randint(-2, 2, (4, SLICE + 40)).float()
    logits[torch.rand(logits.shape) < 0.9] = -torch.inf
    logits[0] = -torch.inf
    logits[0, [SLICE + 3, 7]] = 2.0
    found = check(logits, PARAMS, 3)
    assert found.token_ids[0] == [7, SLICE + 3, -1]


def test_bad_rows() -> None:
    logits = torch.randn(4, SLICE + 40)
    logits[0, -1], logits[1, 3] = torch.nan, torch.inf
    logits[2] = -torch.inf
    found = check(logits, PARAMS, 2)
    assert found.token_ids[:3] == [[-1, -1]] * 3 and found.log_probs[0] == [-torch.inf] * 2


def test_rows_that_filter_tokens() -> None:
    params = [SamplingParams(top_p=0.8, seed=4), *PARAMS[1:3], SamplingParams(top_k=2, seed=5)]
    found = check(torch.randn(4, 300), params, 3)
    assert found.token_ids[3][2] == -1


def test_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    assert candidate_finder(CPU) is candidates
    monkeypatch.setattr("draftwire_core.engine.sampling.candidate_finder.sampler_of", lambda _: (None, "no triton"))
    assert candidate_finder(DEVICE) is candidates_on_device


def test_what_it_asks_of_a_gpu() -> None:
    pytest.importorskip("triton")
    with pretended_gpu() as gpu:
        batch = SamplingBatch.build(PARAMS, range(4)).to(DEVICE)
        logits = torch.randn(4, 300).as_subclass(GpuTensor)
        find = candidate_finder(DEVICE)
        with gpu.counted() as count:
            find(logits, batch, 3)
    # Two kernels; four operations lay out what they read.
    assert count == {"launches": 6, "copies back": 1, "waits": 1}
