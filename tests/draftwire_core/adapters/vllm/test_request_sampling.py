"""vLLM's sampling parameters as the target and the drafters use them."""

from types import SimpleNamespace
from typing import Any

import pytest

from draftwire_core.adapters.common.request_options import RequestOptions
from draftwire_core.adapters.vllm.request_sampling import request_sampling
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.sampling.step_draws import TOP_K, StepDraws
from draftwire_core.pool.drafter.draft_messages import tell_sampling
from tests.harness.stand_ins.fake_vllm import GREEDY


def params(**changes: Any) -> Any:
    return SimpleNamespace(**GREEDY | {"temperature": 1.0, "seed": 7} | changes)


def test_they_are_the_requests() -> None:
    found = request_sampling("r", params(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1), 0)
    assert found == SamplingParams(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=7)
    assert request_sampling("r", params(top_k=-1), 0).top_k == 0
    assert request_sampling("r", params(temperature=0.0), 0).greedy


@pytest.mark.parametrize("top_k", [2**32, 2**63, 2**64 - 1])
def test_a_top_k_of_any_size_is_one_of_the_contract_and_of_the_kernels(top_k: int) -> None:
    found = request_sampling("r", params(top_k=top_k), 0)
    assert tell_sampling(found).top_k == found.top_k > 1 << 20
    assert StepDraws.of_roots(SamplingBatch.build([found], [0])).numbers()[TOP_K, 0] == found.top_k


def test_what_vllm_has_not_comes_from_a_verifier() -> None:
    options = RequestOptions(filters={"min_p": 0.2, "typical_p": 0.9, "seed": 2**64 - 1})
    found = request_sampling("r", params(extra_args=options.extra_args()), 0)
    assert (found.min_p, found.typical_p, found.seed) == (0.2, 0.9, 2**64 - 1)


def test_every_seed_is_an_unsigned_one() -> None:
    assert request_sampling("r", params(seed=-2), 0).seed == 2**64 - 2
    assert request_sampling("r", params(seed=2**64 + 3), 0).seed == 3


def test_without_a_seed_it_depends_on_the_request_and_on_the_engine_alone() -> None:
    seeds = {request_sampling(name, params(seed=None), engine).seed for name in ("a", "b") for engine in (0, 1)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert request_sampling("a", params(seed=None), 0) == request_sampling("a", params(seed=None), 0)
