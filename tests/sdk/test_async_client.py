"""The asyncio client against a verifier without a model."""

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest
from grpc import StatusCode

from draftwire import AsyncClient, DeadlineExceededError, InvalidFieldError, RequestCancelledError, UnavailableError
from tests.harness.stand_ins.fake_verifier import PROMPT, PROMPT_IDS, FakeVerifier, expected_ids, rich_status, text_of
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK


@pytest.fixture
async def client(verifier: FakeVerifier) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as made:
        yield made


async def cancelled(verifier: FakeVerifier) -> bool:
    return await asyncio.to_thread(verifier.cancelled.wait, PATIENCE)


async def test_generate(client: AsyncClient) -> None:
    r = await client.generate(PROMPT, max_tokens=7, seed=5)
    assert r.token_ids == expected_ids(5, 7)
    assert r.text == text_of(r.token_ids)
    assert r.prompt_token_ids == PROMPT_IDS
    assert r.speculation.acceptance_length == 7 / 4


async def test_stream(client: AsyncClient) -> None:
    async with client.stream(PROMPT, max_tokens=5, seed=5) as stream:
        with pytest.raises(RuntimeError, match="has not ended"):
            _ = stream.result
        chunks = [chunk async for chunk in stream]
    assert chunks[0].sources == ["good", None]
    assert "".join(c.text for c in chunks) == stream.result.text == text_of(expected_ids(5, 5))


async def test_chat(client: AsyncClient) -> None:
    messages = [{"role": "user", "content": "hi"}]
    r = await client.chat(messages, max_tokens=4, seed=1)
    assert r.token_ids == expected_ids(1, 4, [ord(c) for c in "userhi"])
    assert "".join([c.text async for c in client.stream_chat(messages, max_tokens=4, seed=1)]) == r.text


async def test_batch(client: AsyncClient, verifier: FakeVerifier) -> None:
    verifier.gathers = 2
    results = await client.generate_batch(["a", [98, 99], "ccc"], max_tokens=6, seed=9)
    assert [r.token_ids for r in results] == [expected_ids(9, 6, p) for p in [[97], [98, 99], [99] * 3]]
    assert verifier.most_running > 1
    verifier.most_running = 0
    await client.generate_batch("abcd", max_tokens=6, max_concurrency=2)
    assert verifier.most_running == 2
    assert await client.generate_batch([]) == []


async def test_one_failure_cancels_the_batch(client: AsyncClient, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    verifier.failures.append(rich_status(StatusCode.INVALID_ARGUMENT, "no", "INVALID_FIELD", ("max_tokens",)))
    with pytest.raises(InvalidFieldError):
        await client.generate_batch(["a", "b", "c"], max_tokens=8)
    assert await asyncio.to_thread(verifier.is_idle)


async def test_unary_calls(client: AsyncClient) -> None:
    assert await client.tokenize("ab", add_special_tokens=True) == [1, 97, 98]
    assert await client.detokenize([97, 98]) == "ab"
    assert (await client.model_info()).vocab_size == 128
    assert [d.name for d in await client.drafters.list()] == ["good", "bad"]
    assert (await client.drafters.attach("here:1", "mine")).name == "mine"
    assert (await client.drafters.detach("mine")).name == "mine"
    assert (await client.drafters.swap("good", "bad")).moved_sequences == 3


async def test_watch(client: AsyncClient, verifier: FakeVerifier) -> None:
    async with client.drafters.watch() as states:
        assert [d.name for d in await anext(states)] == ["good"]
        assert await anext(states) == []
    assert await cancelled(verifier)


@pytest.mark.parametrize("how", ["aclose", "with", "break", "task"])
async def test_ending_early_cancels_the_call(client: AsyncClient, verifier: FakeVerifier, how: str) -> None:
    verifier.hang_after = 2
    if how == "break":
        async for _ in client.stream(PROMPT, max_tokens=20):
            break
        gc.collect()
    elif how == "with":
        async with client.stream(PROMPT, max_tokens=20) as stream:
            await anext(stream)
    elif how == "task":
        task = asyncio.create_task(client.generate(PROMPT, max_tokens=20))
        while not verifier.running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        stream = client.stream(PROMPT, max_tokens=20)
        await anext(stream)
        await stream.aclose()
        assert await anext(stream, None) is None
    assert await cancelled(verifier)


async def test_closing_ends_a_waiting_read(client: AsyncClient, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    stream = client.stream(PROMPT, max_tokens=20)
    await anext(stream)
    asyncio.get_running_loop().call_later(0.1, stream.cancel)
    with pytest.raises(RequestCancelledError):
        await anext(stream)
    assert await cancelled(verifier)


async def test_a_service_that_cancels_does_not_look_like_a_cancelled_task(
    client: AsyncClient, verifier: FakeVerifier
) -> None:
    for call in (client.generate(PROMPT), client.model_info()):
        verifier.failures += [rich_status(StatusCode.CANCELLED, "no")] * QUICK.attempts_per_address
        with pytest.raises(RequestCancelledError):
            await call


async def test_errors(client: AsyncClient, verifier: FakeVerifier) -> None:
    verifier.failures.append(rich_status(StatusCode.INVALID_ARGUMENT, "no", "INVALID_FIELD", ("max_tokens",)))
    with pytest.raises(InvalidFieldError) as caught:
        await client.generate(PROMPT)
    assert caught.value.fields == ("max_tokens",)
    verifier.hang_after = 0
    verifier.calls.clear()
    for seconds in (0.2, 2, 20):  # on a busy machine it may expire before the call has reached the verifier
        with pytest.raises(DeadlineExceededError):
            await client.generate(PROMPT, timeout=seconds)
        if verifier.calls:
            break
    assert await cancelled(verifier)
    async with AsyncClient("127.0.0.1:1", retry=QUICK) as nobody:
        with pytest.raises(UnavailableError):
            await nobody.model_info()


async def test_a_closed_client(client: AsyncClient) -> None:
    await client.model_info()
    await client.close()
    with pytest.raises(RuntimeError, match="closed"):
        await client.model_info()
