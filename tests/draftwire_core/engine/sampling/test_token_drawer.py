"""The tokens that callers without trees draw are the reference sampler's, on CPUs and by the kernels."""

from functools import partial

import pytest
import torch

from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.token_drawer import Draw, draw_by_kernels, token_drawer
from tests.harness.kernels.prepared_interpreter import prepare_interpreter

PARAMS = [
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.6, seed=2**64 - 1, top_k=9, top_p=0.9),
    SamplingParams(temperature=1.4, seed=2**63),
]


def check(draw: Draw, params: list[SamplingParams]) -> torch.Tensor:
    logits = 3 * torch.randn(4, 1100, generator=torch.Generator().manual_seed(4))
    logits[3, 5] = torch.nan
    batch = SamplingBatch.build(params, [7, 0, 4096, 12])
    drawn = draw(logits, batch)
    assert drawn.dtype == torch.int64
    assert torch.equal(drawn, sample(logits, batch).token_ids)
    return drawn


def test_on_a_cpu() -> None:
    assert check(token_drawer(torch.device("cpu")), PARAMS)[3] == -1


def test_by_kernels() -> None:
    pytest.importorskip("triton")
    prepare_interpreter()
    assert check(partial(draw_by_kernels, KernelSampler()), PARAMS)[3] == -1


def test_a_filter_that_the_kernels_do_not_know() -> None:
    pytest.importorskip("triton")
    prepare_interpreter()
    check(partial(draw_by_kernels, KernelSampler()), [*PARAMS[:2], SamplingParams(typical_p=0.5), PARAMS[3]])
