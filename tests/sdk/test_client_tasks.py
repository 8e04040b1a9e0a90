"""The asyncio client is used by several tasks, which may be cancelled."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from grpc import StatusCode

from draftwire import AsyncClient, RequestCancelledError, RetryPolicy
from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier, rich_status
from tests.harness.waiting import PATIENCE
from tests.sdk.conftest import QUICK


@pytest.fixture
async def client(verifier: FakeVerifier) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as made:
        yield made


async def test_cancelling_the_task_cancels_the_call(client: AsyncClient, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    task = asyncio.create_task(client.generate(PROMPT, max_tokens=20))
    while not verifier.running:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(verifier.cancelled.wait, PATIENCE)


async def test_closing_ends_a_waiting_read(client: AsyncClient, verifier: FakeVerifier) -> None:
    verifier.hang_after = 2
    stream = client.stream(PROMPT, max_tokens=20)
    await anext(stream)
    asyncio.get_running_loop().call_later(0.1, stream.cancel)
    with pytest.raises(RequestCancelledError):
        await anext(stream)
    assert await asyncio.to_thread(verifier.cancelled.wait, PATIENCE)


async def test_closing_ends_the_wait_for_a_place_at_a_full_verifier(verifier: FakeVerifier) -> None:
    full = rich_status(StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY", retry_after=3600.0)
    verifier.break_after, verifier.as_it_breaks = [2], lambda: verifier.failures.append(full)
    async with AsyncClient(verifier.address, retry=QUICK) as client:
        stream = client.stream(PROMPT, max_tokens=20)
        await anext(stream)
        reading = asyncio.ensure_future(anext(stream))
        while len(verifier.calls) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        stream.cancel()
        with pytest.raises(RequestCancelledError):
            await asyncio.wait_for(reading, PATIENCE)


async def test_closing_the_client_ends_a_request_that_waits_for_its_next_attempt(verifier: FakeVerifier) -> None:
    verifier.failures += [rich_status(StatusCode.UNAVAILABLE, "no")]
    async with AsyncClient(verifier.address, retry=RetryPolicy(initial_backoff=0.3)) as client:
        waiting = asyncio.create_task(client.generate(PROMPT))
        while not verifier.calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
    with pytest.raises(RequestCancelledError):
        await waiting


async def test_a_stream_that_nobody_reads_before_the_client_closes_logs_nothing(
    verifier: FakeVerifier, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncClient(verifier.address) as client:
        stream = client.stream("x" * 2_000_000, max_tokens=3)  # large, so that a task opens it
        opening = stream._opening
        assert opening is not None
    await asyncio.wait({opening})
    del stream, opening
    gc.collect()
    assert caplog.records == []


async def test_closing_a_request_that_has_ended_does_not_look_like_a_cancelled_task() -> None:
    class Lingering(FakeVerifier):
        """Ends its calls late."""

        def Generate(self, request: pb.GenerateRequest, context: Any, begun: bool = False) -> Iterator[Any]:
            yield from super().Generate(request, context, begun)
            over = threading.Event()
            assert not context.add_callback(over.set) or over.wait(PATIENCE)

    with Lingering() as verifier:
        async with AsyncClient(verifier.address, timeout=PATIENCE, retry=QUICK) as client:
            stream = client.stream(PROMPT, max_tokens=2)
            asyncio.get_running_loop().call_later(0.2, stream.cancel)
            assert "".join([chunk.text async for chunk in stream]) == stream.result.text
            assert len(stream.result.token_ids) == 2


async def test_a_service_that_cancels_does_not_look_like_a_cancelled_task(
    client: AsyncClient, verifier: FakeVerifier
) -> None:
    for call in (client.generate(PROMPT), client.model_info()):
        verifier.failures += [rich_status(StatusCode.CANCELLED, "no")] * QUICK.attempts_per_address
        with pytest.raises(RequestCancelledError):
            await call
