"""An abandoned request frees its KV slots, and its sequences at the drafter."""

import asyncio
from typing import Any

import pytest

from draftwire import AsyncClient, Client, DeadlineExceededError
from tests.harness.waiting import PATIENCE, eventually

pytestmark = pytest.mark.processes

PROMPT = "def read_config(path):\n"
ENDLESS: dict[str, Any] = {"max_tokens": 1800, "ignore_eos": True, "temperature": 0.8, "seed": 3}


@pytest.fixture(autouse=True)
def attached(client: Client, good_drafter: str) -> None:
    client.drafters.attach(good_drafter, "good")


def assert_freed(client: Client) -> None:
    eventually(lambda: client.model_info().engine.used_slots == 0, "the slots are free")
    engine = client.model_info().engine
    assert (engine.running_sequences, engine.waiting_requests) == (0, 0)
    eventually(lambda: client.drafters.list()[0].sequences == 0, "the drafter's sequences are closed")
    assert client.drafters.list()[0].state == "ready"


def test_closing_the_iterator(client: Client) -> None:
    stream = client.stream(PROMPT, **ENDLESS)
    for _ in range(3):
        next(stream)
    engine = client.model_info().engine
    assert engine.running_sequences == 1
    assert engine.used_slots > 0
    assert client.drafters.list()[0].sequences == 1
    stream.close()
    assert_freed(client)


def test_leaving_the_loop(client: Client) -> None:
    for chunk in client.stream(PROMPT, **ENDLESS):
        assert chunk.token_ids
        break
    assert_freed(client)


def test_before_the_first_token(client: Client) -> None:
    client.stream([5] * 1500, **ENDLESS | {"max_tokens": 500}).close()
    assert_freed(client)


def test_some_of_many(client: Client) -> None:
    """The remaining requests are unaffected."""
    expected = client.generate(PROMPT, **ENDLESS | {"max_tokens": 60}).token_ids
    streams = [client.stream(PROMPT, **ENDLESS | {"seed": seed}) for seed in (8, 9, 3, 10)]
    found = [next(stream).token_ids for stream in streams]
    for index in (0, 1, 3):
        streams[index].close()
    while len(found[2]) < 60:
        found[2] += next(streams[2]).token_ids
    assert found[2][:60] == expected
    streams[2].close()
    assert_freed(client)


def test_the_deadline_passes(client: Client) -> None:
    with pytest.raises(DeadlineExceededError):
        client.generate(PROMPT, timeout=0.4, **ENDLESS)
    assert_freed(client)


def test_the_client_is_closed(client: Client) -> None:
    other = Client(client.address)
    next(other.stream(PROMPT, **ENDLESS))
    other.close()
    assert_freed(client)


async def test_a_task_is_cancelled(client: Client) -> None:
    async with AsyncClient(client.address) as other:
        task = asyncio.create_task(other.generate(PROMPT, **ENDLESS))
        async with asyncio.timeout(PATIENCE):
            while (await other.model_info()).engine.running_sequences == 0:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    await asyncio.to_thread(assert_freed, client)
