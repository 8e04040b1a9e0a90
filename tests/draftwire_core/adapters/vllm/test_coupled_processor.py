"""Coupled acceptance under runner V2: what the last processor of logits leaves is the token that our engine draws."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwire_core.adapters.vllm.coupled_processor import CoupledProcessor
from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator
from draftwire_core.adapters.vllm.request_sampling import request_sampling
from draftwire_core.engine.sampling.coupled_sampler import sample
from draftwire_core.engine.sampling.kernel_sampler import KernelSampler
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.kernels.prepared_interpreter import prepare_interpreter
from tests.harness.stand_ins.fake_vllm import GREEDY, vllm_config
from tests.harness.stand_ins.runner_v2 import PlainStates

CPU = torch.device("cpu")
VOCABULARY = 1100
WARM: dict[str, Any] = {"temperature": 0.8, "seed": -3}
FILTERED: dict[str, Any] = {"temperature": 1.2, "seed": 9, "top_k": 30, "top_p": 0.9, "min_p": 0.01}
UNSEEDED: dict[str, Any] = {"temperature": 1.0}


def params(**changes: Any) -> Any:
    return SimpleNamespace(**GREEDY | changes)


def states_of(**places: str) -> PlainStates:
    states = PlainStates(4, 16, 3)
    states.index_to_req_id = {int(place[1:]): name for place, name in places.items()}
    return states


def context(places: list[int], positions: list[int]) -> Any:
    """LogitsContext of rows at places of the runner, whose input tokens have these positions."""
    return SimpleNamespace(
        expanded_idx_mapping=torch.tensor(places, dtype=torch.int32),
        idx_mapping_np=np.array(sorted(set(places))),
        pos=torch.tensor(positions),
    )


def left(logits: Tensor) -> list[int]:
    """The token that is left of each row."""
    assert (logits.isfinite().sum(1) == 1).all()
    return logits.argmax(1).tolist()  # type: ignore[no-any-return]


@pytest.fixture(params=["reference", "kernels"])
def sampler(request: pytest.FixtureRequest) -> KernelSampler | None:
    if request.param == "reference":
        return None
    pytest.importorskip("triton")
    prepare_interpreter()
    return KernelSampler()


@pytest.mark.parametrize("given", [[{}, WARM, UNSEEDED], [{}, WARM, FILTERED]], ids=["plain", "filtered"])
def test_what_is_left(sampler: KernelSampler | None, given: list[dict[str, Any]]) -> None:
    names = ["a", "b", "c"]
    processor = CoupledProcessor(states_of(p0="a", p1="b", p2="c"), 5, CPU, sampler)
    changed = [processor.add_request(place, params(**each)) for place, each in enumerate(given)]
    processor.apply_staged_writes()
    assert changed == [False, True, True]
    places, positions = [2, 2, 2, 0, 1], [10, 11, 12, 4, 77]
    logits = torch.randn(5, VOCABULARY, generator=torch.Generator().manual_seed(2))
    logits[4, :500] = -torch.inf  # a grammar's mask
    sampling = [request_sampling(names[place], params(**given[place]), 5) for place in places]
    expected = sample(logits, SamplingBatch.build(sampling, [each + 1 for each in positions])).token_ids.tolist()
    assert left(processor.apply(logits, context(places, positions))) == expected


def test_a_place_is_taken_over(sampler: KernelSampler | None) -> None:
    states = states_of(p1="first")
    processor = CoupledProcessor(states, 0, CPU, sampler)
    processor.add_request(1, params(**FILTERED))
    processor.apply_staged_writes()
    states.index_to_req_id[1] = "second"
    processor.add_request(1, params(**UNSEEDED))
    processor.apply_staged_writes()
    processor.apply_staged_writes()
    logits = torch.randn(1, VOCABULARY)
    sampling = request_sampling("second", params(**UNSEEDED), 0)
    assert processor.sampling[1] == sampling
    expected = sample(logits, SamplingBatch.build([sampling], [8])).token_ids.tolist()
    assert left(processor.apply(logits, context([1], [7]))) == expected


def test_logits_that_are_not_numbers(sampler: KernelSampler | None) -> None:
    processor = CoupledProcessor(states_of(p0="a"), 0, CPU, sampler)
    processor.add_request(0, params(**WARM))
    processor.apply_staged_writes()
    logits = torch.full((1, VOCABULARY), torch.nan)
    assert left(processor.apply(logits, context([0], [7]))) == [0]


def test_vllm_warms_up_without_requests() -> None:
    processor = CoupledProcessor(states_of(), 0, CPU, None)
    assert processor.add_request(3, params(**UNSEEDED))


def runner(**changes: Any) -> Any:
    sampler = {"logprobs_mode": "raw_logprobs", "logits_processors": []} | changes
    return SimpleNamespace(sampler=SimpleNamespace(**sampler))


def test_the_speculator_adds_it_as_the_last_processor() -> None:
    speculator = RemoteSpeculator(vllm_config(Path()), CPU, states_of())
    assert not speculator.coupled
    made = runner(logits_processors=["vLLM's"])
    speculator.couple(made)
    assert speculator.coupled
    assert made.sampler.logits_processors[0] == "vLLM's"
    assert isinstance(made.sampler.logits_processors[1], CoupledProcessor)


def test_it_is_left_out_if_the_settings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAFTWIRE_VLLM_COUPLED_SAMPLING", "false")
    speculator = RemoteSpeculator(vllm_config(Path()), CPU, states_of())
    made = runner()
    speculator.couple(made)
    assert not speculator.coupled
    assert made.sampler.logits_processors == []


def test_what_would_be_told_of_a_single_token_is_refused() -> None:
    speculator = RemoteSpeculator(vllm_config(Path()), CPU, states_of())
    with pytest.raises(StartupError, match=r"logprobs_mode is processed_logits, but .*COUPLED_SAMPLING"):
        speculator.couple(runner(logprobs_mode="processed_logits"))
    with pytest.raises(StartupError, match="return_sampling_mask is True"):
        speculator.couple(runner(return_sampling_mask=True))
