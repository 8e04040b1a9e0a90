"""vLLM's steps as the verifier gets them, from a scripted engine core."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from draftwire_core.engine.engine.sequence import SequenceSpec
from draftwire_core.engine.engine.step_result import Finish, StepResult
from draftwire_core.engine.model.ranks.rank_group import RankLostError
from draftwire_core.engine.planning.step_cost import StepCost
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from tests.harness.waiting import PATIENCE
from verifier_service.vllm.request import VllmOrder
from verifier_service.vllm.steps import DRAFTED, VllmSteps, log_probs_of


class Core:
    """An engine core whose outputs a test puts into a queue."""

    def __init__(self) -> None:
        self.outputs: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[Any] = []

    async def add_request_async(self, request: Any) -> None:
        self.sent.append(request.request_id)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.sent.append(("end", *request_ids))

    async def get_output_async(self) -> Any:
        found = await self.outputs.get()
        if isinstance(found, Exception):
            raise found
        return found


class Listener:
    """Keeps what a verifier would get."""

    def __init__(self) -> None:
        self.steps: asyncio.Queue[StepResult] = asyncio.Queue()
        self.failures: asyncio.Queue[BaseException] = asyncio.Queue()

    def on_step(self, result: StepResult, stale: dict[tuple[int, str], int]) -> None:
        self.steps.put_nowait(result)

    def on_failure(self, error: BaseException) -> None:
        self.failures.put_nowait(error)

    def on_features(self, features: Any) -> None:
        raise AssertionError

    on_proposal_fault = on_features


def output(name: str, tokens: list[int], finish: str | None = None, **fields: Any) -> SimpleNamespace:
    """An EngineCoreOutput of vLLM."""
    given: dict[str, Any] = {
        "new_prompt_logprobs_tensors": None,
        "new_logprobs": None,
        "events": None,
        "prefill_stats": None,
        "spec_decode_metrics": None,
    }
    return SimpleNamespace(request_id=name, new_token_ids=tokens, finish_reason=finish, **{**given, **fields})


def stats(drafts: int = 0) -> SimpleNamespace:
    """vLLM's SchedulerStats."""
    return SimpleNamespace(
        num_running_reqs=1,
        num_waiting_reqs=2,
        num_skipped_waiting_reqs=1,
        kv_cache_usage=0.25,
        prefix_cache_stats=SimpleNamespace(queries=10, hits=4),
        spec_decoding_stats=SimpleNamespace(num_draft_tokens=drafts) if drafts else None,
    )


def step(*outputs: SimpleNamespace, scheduler_stats: Any = None) -> SimpleNamespace:
    """vLLM's EngineCoreOutputs."""
    return SimpleNamespace(outputs=list(outputs), scheduler_stats=scheduler_stats)


def order(number: int, *, speculate: bool = True, **spec: Any) -> VllmOrder:
    made = SequenceSpec(number, [5, 6, 7], 64, SamplingParams(), **spec)
    return VllmOrder(
        request_id="r",
        spec=made,
        prompt_length=3,
        prompt_was_text=False,
        stops=(),
        speculate=speculate,
        request=SimpleNamespace(request_id=f"r/{number}"),
    )


class Running:
    """Steps in front of a scripted core, until the `async with` is left."""

    async def __aenter__(self) -> Running:
        self.core, self.listener = Core(), Listener()
        self.steps = VllmSteps(self.core, 4, 400, StepCost([1, 8], [0.02, 0.2]))
        self.steps.start(self.listener)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.steps.stop()

    async def step(self, *outputs: SimpleNamespace, scheduler_stats: Any = None) -> StepResult:
        self.core.outputs.put_nowait(step(*outputs, scheduler_stats=scheduler_stats))
        async with asyncio.timeout(PATIENCE):
            return await self.listener.steps.get()


def test_tokens_drafts_and_ends() -> None:
    async def run() -> None:
        async with Running() as running:
            running.steps.add(order(1))
            begun = SimpleNamespace(type=SimpleNamespace(name="SCHEDULED"), timestamp=12.5)
            prefill = SimpleNamespace(num_cached_tokens=1, num_computed_tokens=2)
            [first] = (await running.step(output("r/1", [8], events=[begun], prefill_stats=prefill))).outcomes
            assert (first.tokens, first.sources, first.committed_length) == ([8], [None], 4)
            assert (first.cached_tokens, first.began, first.finish) == (1, 12.5, None)
            result = await running.step(output("r/1", [9, 10, 11]), scheduler_stats=stats(drafts=3))
            [second] = result.outcomes
            assert second.sources == [DRAFTED, DRAFTED, None] and second.drafted == {DRAFTED: 2}
            assert result.rows == 4 and result.seconds > 0
            counted = SimpleNamespace(num_draft_tokens=7)
            [last] = (await running.step(output("r/1", [12], "stop", spec_decode_metrics=counted))).outcomes
            assert (last.finish, last.drafted, last.committed_length) == (Finish.EOS, {DRAFTED: 5}, 8)
            status = running.steps.status()
            assert (status.running_sequences, status.waiting_requests) == (1, 3)
            assert (status.used_slots, status.total_slots) == (100, 400)
            assert (status.prefix_cache.queried_tokens, status.prefix_cache.hit_tokens) == (10, 4)
            planner = status.planner
            assert (planner.steps, planner.sequences, planner.draft_tokens) == (3, 3, 3)
            assert (planner.last_draft_tokens, len(planner.step_costs) > 0) == (0, True)
            running.steps.remove(1)
            running.steps.remove(1)
            assert running.steps.status().running_sequences == 0
            await asyncio.sleep(0)
            assert running.core.sent == ["r/1"]

    asyncio.run(run())


def test_a_request_that_ends_early_is_ended_in_vllm() -> None:
    async def run() -> None:
        async with Running() as running:
            running.steps.add(order(1))
            running.steps.add(order(2))
            running.steps.remove(1)
            [outcome] = (await running.step(output("r/1", [8]), output("r/2", [9], "length"))).outcomes
            assert (outcome.sequence_id, outcome.finish) == (2, Finish.LENGTH)
            assert running.core.sent == ["r/1", "r/2", ("end", "r/1")]

    asyncio.run(run())


def test_what_runner_v2_fills_steps_with_is_no_draft() -> None:
    async def run() -> None:
        async with Running() as running:
            running.steps.add(order(1, speculate=False))
            metrics = SimpleNamespace(num_draft_tokens=10)
            result = await running.step(output("r/1", [8, 8, 9], "stop", spec_decode_metrics=metrics))
            (outcome,) = result.outcomes
            assert (outcome.tokens, outcome.sources, outcome.drafted) == ([8, 8, 9], [None] * 3, {})

    asyncio.run(run())


def test_log_probs_of_tokens_and_prompts() -> None:
    async def run() -> None:
        async with Running() as running:
            running.steps.add(order(1, logprobs=1, prompt_logprobs=0))
            # Another request of the batch has asked for two.
            lists = (np.array([[8, 3, 4]]), np.array([[-0.5, -0.1, -0.9]], dtype=np.float32), np.array([2]))
            prompt = (torch.tensor([[6], [7]]), torch.tensor([[-1.0], [-2.0]]), torch.tensor([1, 5]), None)
            result = await running.step(output("r/1", [8], new_logprobs=lists, new_prompt_logprobs_tensors=prompt))
            told = result.outcomes[0].log_probs
            assert told is not None
            assert (told.token_ids.tolist(), told.ranks.tolist(), told.top_ids.tolist()) == ([8], [2], [[3]])
            assert np.allclose(told.log_probs, [-0.5]) and np.allclose(told.top_log_probs, [[-0.1]])
            assert result.prompts[1].token_ids.tolist() == [6, 7]
            assert result.prompts[1].top_ids.shape == (2, 0)

    asyncio.run(run())
    assert len(log_probs_of((np.array([[1, 2]]), np.array([[0.0, 0.0]]), np.array([1])), 1)) == 1
    form = (np.array([[7, 7, 0, 1]]), np.array([[0.0, 0.0, -np.inf, -np.inf]]), np.array([1]))
    assert log_probs_of(form, 3).top_ids.tolist() == [[7, -1, -1]], "what a form does not allow is no likely token"


def test_the_loss_of_vllm_is_that_of_a_model() -> None:
    async def run() -> None:
        async with Running() as running:
            running.core.outputs.put_nowait(RuntimeError("EngineCore died"))
            async with asyncio.timeout(PATIENCE):
                error = await running.listener.failures.get()
            assert isinstance(error, RankLostError) and "EngineCore died" in str(error)

    asyncio.run(run())
