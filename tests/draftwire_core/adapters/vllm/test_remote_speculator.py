"""The speculator, with its pool and drafters, under a stand-in of runner V2: the text is always the target's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwire import Client
from draftwire_core.adapters.vllm.remote_speculator import RemoteSpeculator
from draftwire_core.adapters.vllm.request_sampling import request_sampling
from tests.draftwire_core.adapters.vllm.conftest import MakeRunner, following_logits
from tests.harness.services.in_process_verifier import Network
from tests.harness.stand_ins.fake_vllm import GREEDY, text_after, vllm_config
from tests.harness.stand_ins.pool_drafters import Listen, wrong
from tests.harness.stand_ins.runner_v2 import PlainKernels, PlainStates, RunnerV2
from tests.harness.stand_ins.scripted_drafter import Opening, batch

Connect = Callable[[Any], Client]
WORKERS = pytest.mark.parametrize("worker", [True, False], ids=["its worker", "vLLM's worker"])


def check_texts(runner: RunnerV2) -> None:
    for request in [*runner.requests.values(), *runner.ended]:
        assert request.output == text_after(request.prompt, len(request.output))


def accepted(runner: RunnerV2) -> int:
    return sum(request.accepted for request in [*runner.requests.values(), *runner.ended])


@WORKERS
def test_what_drafters_know_is_accepted(runner: MakeRunner, listen: Listen, client: Connect, worker: bool) -> None:
    listen("a:1")
    running = runner("a:1", worker=worker)
    running.warm_up()
    for number in range(4):
        running.add(f"r{number}", [number + 1, 5, 9])
    running.run(lambda: accepted(running) > 50)
    check_texts(running)
    [shown] = client(running.speculator).drafters.list()
    assert shown.name == "a:1"
    assert shown.accepted_tokens > 0
    assert shown.acceptance_rate > 0.5


def test_drafters_are_told_how_a_request_is_sampled(runner: MakeRunner, listen: Listen) -> None:
    drafter = listen("a:1")
    running = runner("a:1")
    sampler = SimpleNamespace(logprobs_mode="raw_logprobs", logits_processors=[])
    running.speculator.couple(SimpleNamespace(sampler=sampler))
    running.add("r", [1, 2, 3])
    running.run(lambda: bool(drafter.opened))
    told = drafter.opened[0].sampling
    assert told.temperature == 0
    assert told.seed == request_sampling("r", SimpleNamespace(**GREEDY), 0).seed != 0


@WORKERS
def test_requests_come_and_go_in_chunks(runner: MakeRunner, listen: Listen, worker: bool) -> None:
    drafter = listen("a:1")
    running = runner("a:1", worker=worker, chunk=4)
    for number in range(12):
        running.add(f"r{number}", list(range(number + 1, number + 12)), max_tokens=10 + 7 * number)
    running.run(lambda: len(running.requests) < 7)
    running.abort(next(iter(running.requests)))
    running.run(lambda: not running.requests)
    check_texts(running)
    assert len(running.ended) == 12
    assert accepted(running) > 0
    running.add("another", [1, 2], max_tokens=1000)  # without its worker a step is needed to notice the last ends
    running.run(lambda: len(drafter.open) == 1)


@WORKERS
def test_prompts_are_opened_before_they_are_computed(runner: MakeRunner, listen: Listen, worker: bool) -> None:
    """With draftwire's worker before the first step, with vLLM's at the end of the first chunk."""
    drafter = listen("a:1")
    running = runner("a:1", worker=worker, chunk=2)
    request = running.add("r", range(1, 100))
    running.step()
    assert not request.output
    running.run(lambda: bool(drafter.opened))
    assert list(drafter.opened[0].token_ids[:99]) == list(range(1, 100))


@WORKERS
def test_a_preempted_request_comes_back(runner: MakeRunner, listen: Listen, worker: bool) -> None:
    listen("a:1")
    running = runner("a:1", worker=worker)
    stays = running.add("stays", [1, 2, 3], max_tokens=4000)
    away = running.add("away", [4, 5, 6], max_tokens=4000)
    running.run(lambda: away.accepted > 5)
    running.preempt("away")
    before = len(stays.tokens)
    running.run(lambda: len(stays.tokens) > before + 5)
    running.resume("away")
    known = away.accepted
    running.run(lambda: away.accepted > known + 5)
    check_texts(running)


def test_an_id_that_is_used_again_with_other_tokens(runner: MakeRunner, listen: Listen) -> None:
    listen("a:1")
    running = runner("a:1", worker=False)
    first = running.add("r", [1, 2, 3], max_tokens=4000)
    running.run(lambda: first.accepted > 5)
    running.abort("r")
    second = running.add("r", [7, 8, 9, 10], max_tokens=4000)
    running.run(lambda: second.accepted > 5)
    check_texts(running)


@WORKERS
def test_steps_after_which_nothing_is_drafted(runner: MakeRunner, listen: Listen, worker: bool) -> None:
    """Nobody is waited for, the device neither; drafters hear of the tokens later."""
    listen("a:1")
    running = runner("a:1", worker=worker)
    request = running.add("r", [1, 5, 9], max_tokens=4000)
    running.run(lambda: accepted(running) > 5)
    running.skips_drafts = True
    running.step()
    known, length = request.accepted, len(request.tokens)
    for _ in range(9):
        running.step()
    assert (request.accepted, len(request.tokens)) == (known, length + 9)
    running.skips_drafts = False
    running.run(lambda: accepted(running) > known + 5)
    check_texts(running)


def test_a_drafter_is_swapped_by_the_sdk(runner: MakeRunner, listen: Listen, client: Connect) -> None:
    old, new = listen("old:1"), listen("new:1")
    running = runner("old:1")
    for number in range(3):
        running.add(f"r{number}", [number + 1, 5, 9], max_tokens=4000)
    running.run(lambda: accepted(running) > 5 and len(old.open) == 3)
    client(running.speculator).drafters.swap("old:1", "new:1")
    assert len(new.open) == 3
    before = accepted(running)
    running.run(lambda: accepted(running) > before + 20)
    check_texts(running)


def test_a_drafter_that_is_killed_leaves_vllm_to_itself(runner: MakeRunner, listen: Listen, network: Network) -> None:
    drafter = listen("a:1")
    running = runner("a:1")
    request = running.add("r", [1, 2, 3], max_tokens=4000)
    running.run(lambda: request.accepted > 5)
    loop: Any = running.speculator._pool._loop
    asyncio.run_coroutine_threadsafe(network.kill("a:1"), loop).result(30)
    running.run(lambda: not drafter.streams)
    length = len(request.tokens)
    running.run(lambda: len(request.tokens) > length + 10)
    check_texts(running)
    listen("a:1")
    before = request.accepted
    running.run(lambda: request.accepted > before + 20)
    check_texts(running)


def test_a_drafter_that_is_always_wrong(runner: MakeRunner, listen: Listen) -> None:
    listen("a:1", wrong)
    running = runner("a:1")
    request = running.add("r", [1, 2, 3], max_tokens=4000)
    running.run(lambda: len(request.output) > 60)
    check_texts(running)


def test_a_drafter_that_talks_nonsense(runner: MakeRunner, listen: Listen) -> None:
    def nonsense(opening: Opening) -> Any:
        return [batch(opening.proposal([5], first_node_id=1000))]

    drafter = listen("a:1", nonsense)
    running = runner("a:1")
    running.add("r", [1, 2, 3], max_tokens=4000)
    running.run(lambda: bool(drafter.errors))
    check_texts(running)


def test_what_drafters_leave_empty_is_the_last_sampled_token(runner: MakeRunner) -> None:
    running = runner()
    request = running.add("r", [1, 2, 3])
    running.step()
    place = running.states.req_id_to_index["r"]
    assert running.states.draft_tokens[place].tolist() == [request.tokens[-1]] * 3
    running.run(lambda: len(request.output) > 20)
    check_texts(running)


def test_whatever_breaks_is_counted_and_nothing_is_drafted(runner: MakeRunner, listen: Listen) -> None:
    listen("a:1")
    running = runner("a:1", worker=False)
    request = running.add("r", [1, 2, 3], max_tokens=4000)
    running.run(lambda: request.accepted > 0)
    speculator = running.speculator
    speculator._states = None
    length = len(request.tokens)
    for _ in range(3):
        speculator.step_begins(None)
        running.step()
    assert len(request.tokens) >= length + 3
    assert speculator.faults == {"AttributeError": 6}
    check_texts(running)
    speculator.faults.clear()


def test_when_the_pool_is_gone_vllm_goes_on(runner: MakeRunner, listen: Listen) -> None:
    listen("a:1")
    running = runner("a:1")
    request = running.add("r", [1, 2, 3], max_tokens=4000)
    running.run(lambda: request.accepted > 0)
    running.speculator.shutdown()
    length = len(request.tokens)
    running.run(lambda: len(request.tokens) > length + 10)
    check_texts(running)


class Group:
    """Tensor-parallel ranks of one process: what the first broadcasts is what the others receive."""

    world_size = 2

    def __init__(self, sent: list[torch.Tensor], rank: int) -> None:
        self.rank_in_group = rank
        self._sent = sent

    def broadcast(self, tensor: torch.Tensor, src: int) -> torch.Tensor:
        assert src == 0
        if self.rank_in_group == 0:
            self._sent.append(tensor.clone())
        else:
            tensor.copy_(self._sent.pop(0))
        return tensor


def test_ranks_verify_what_the_first_drafted(checkpoint: Path, listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    listen("a:1")
    monkeypatch.setenv("DRAFTWIRE_VLLM_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("DRAFTWIRE_VLLM_DRAFTER", "a:1")
    sent: list[torch.Tensor] = []
    ranks = []
    for rank in range(2):
        states = PlainStates(16, 4096, 3)
        config = vllm_config(checkpoint)
        speculator = RemoteSpeculator(config, torch.device("cpu"), states, Group(sent, rank))
        speculator.init_cudagraph_manager(None)
        ranks.append(RunnerV2(speculator, states, PlainKernels(), following_logits))
    first, second = ranks
    requests = [each.add("r", [1, 2, 3], max_tokens=4000) for each in ranks]

    def step() -> bool:
        second.step() if sent else None
        return requests[0].accepted > 20

    first.run(step)
    step()
    assert requests[1].tokens == requests[0].tokens
    assert second.speculator.address == ""
    check_texts(second)
    for each in ranks:
        each.speculator.shutdown()
        assert not each.speculator.faults


def test_the_speculator_ends_with_its_runner(runner: MakeRunner, checkpoint: Path) -> None:
    """vLLM drops a speculator at the end, and says nothing."""
    runner()  # sets the variables
    speculator = RemoteSpeculator(vllm_config(checkpoint), torch.device("cpu"), PlainStates(16, 64, 3))
    speculator.init_cudagraph_manager(None)
    pool = speculator._pool
    assert pool is not None
    assert pool.alive
    del speculator
    assert not pool.alive
