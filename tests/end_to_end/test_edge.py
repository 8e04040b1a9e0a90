"""Clients that draft in their own process, with the bundled models: the same tokens."""

from collections.abc import Iterator
from typing import Any

import pytest

from draftwire import Client, SpeculationStats
from draftwire.edge import AsyncEdgeClient, EdgeClient, LocalDrafter
from tests.harness.checkout import MODELS
from tests.harness.services.services import Services
from tests.harness.waiting import PATIENCE, TRIES, eventually, sometimes

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"
GREEDY = {"max_tokens": 48, "temperature": 0.0, "seed": 7, "ignore_eos": True}
SAMPLED = {"max_tokens": 48, "temperature": 0.8, "top_p": 0.95, "seed": 7, "ignore_eos": True}


@pytest.fixture(scope="module")
def drafter() -> Iterator[LocalDrafter]:
    made = LocalDrafter(str(MODELS / "draft"), threads=1)
    yield made
    assert made.thread.open_sequences() == 0
    made.close()


@pytest.fixture
def edge(client: Client, drafter: LocalDrafter) -> Iterator[EdgeClient]:
    with EdgeClient(client.address, model=drafter, timeout=PATIENCE) as made:
        yield made
        eventually(lambda: made.model_info().engine.used_slots == 0, "no slot is in use")


def drafted_nodes(stats: SpeculationStats) -> int:
    """Returns the caller's nodes that reached the target, in time or not: a step of such a small target takes as
    long as the transfer of a proposal. tests/verifier_service/test_verify_conversation.py tests the acceptance of
    timely ones."""
    return stats.draft_tokens + stats.stale_nodes


@pytest.mark.parametrize("options", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_same_tokens(client: Client, edge: EdgeClient, options: dict[str, Any]) -> None:
    plain = client.generate(PROMPT, **options)

    def play() -> int:
        r = edge.generate(PROMPT, **options)
        assert r.token_ids == plain.token_ids
        assert r.text == plain.text
        assert {share.name for share in r.speculation.drafters} <= {"caller"}
        if not r.resumes:  # otherwise the statistics cover only the last part
            assert r.speculation.steps == 48 - r.speculation.accepted_tokens
        return drafted_nodes(r.speculation)

    sometimes(play, "the caller drafts before it is over")


def test_the_same_is_told(client: Client, edge: EdgeClient) -> None:
    asked: dict[str, Any] = {**SAMPLED, "n": 2, "logprobs": 3, "prompt_logprobs": 1, "echo": True}
    plain, drafted = client.generate(PROMPT, **asked), edge.generate(PROMPT, **asked)
    for one, other in zip(plain.choices, drafted.choices, strict=True):
        assert (one.logprobs, one.prompt, one.text_offsets) == (other.logprobs, other.prompt, other.text_offsets)
        assert len(one.logprobs) == 48 and one.prompt is not None


def test_several_at_once(client: Client, edge: EdgeClient) -> None:
    prompts = ["def fib(n):", "class Stack:", "import os\n"]
    plain = client.generate_batch(prompts, **SAMPLED)

    def play() -> int:
        drafted = edge.generate_batch(prompts, **SAMPLED)
        assert [r.token_ids for r in drafted] == [r.token_ids for r in plain]
        return sum(drafted_nodes(r.speculation) for r in drafted)

    sometimes(play, "the caller drafts before all is over")


def test_beside_a_drafter_of_the_pool(client: Client, edge: EdgeClient, bad_drafter: str) -> None:
    plain = client.generate(PROMPT, **SAMPLED)
    client.drafters.attach(bad_drafter, name="bad")
    r = edge.generate(PROMPT, **SAMPLED)
    assert r.token_ids == plain.token_ids
    assert {share.name for share in r.speculation.drafters} <= {"caller", "bad"}


async def test_asyncio(client: Client, drafter: LocalDrafter) -> None:
    plain = client.generate(PROMPT, **SAMPLED)
    async with AsyncEdgeClient(client.address, model=drafter, timeout=PATIENCE) as edge:
        for _ in range(TRIES):
            chunks = []
            async with edge.stream(PROMPT, **SAMPLED) as stream:
                async for chunk in stream:
                    chunks += chunk.token_ids
            assert chunks == stream.result.token_ids == plain.token_ids
            if drafted_nodes(stream.result.speculation) > 0:
                return
    raise AssertionError(f"the caller was never in time, in {TRIES} plays")


def test_a_verifier_that_dies(client: Client, drafter: LocalDrafter, services: Services) -> None:
    doomed = services.verifier()
    plain = client.generate(PROMPT, **SAMPLED)
    with EdgeClient([doomed.address, f"{client.address}?weight=0"], model=drafter, timeout=PATIENCE) as edge:
        with edge.stream(PROMPT, **SAMPLED) as stream:
            tokens = list(next(stream).token_ids)
            doomed.kill()
            for chunk in stream:
                tokens += chunk.token_ids
    assert tokens == stream.result.token_ids == plain.token_ids
