"""Behaviour of the fake stream beyond that of the real one."""

import asyncio
from typing import Any

import grpc
import pytest

from draftwire_core.runtime.errors import ServiceError, at_capacity
from draftwire_core.runtime.rpc.in_process_stream import in_process_call, stream_pair
from draftwire_core.runtime.rpc.message_stream import ClientGone, MessageStream, StreamBroken


async def test_a_pair_holds_a_bounded_number_of_messages_each_way() -> None:
    client, server = stream_pair(max_buffered=2)
    await client.write(1)
    await client.write(2)
    third = asyncio.create_task(client.write(3))
    await asyncio.sleep(0)
    assert not third.done()
    assert [await server.read() for _ in range(3)] == [1, 2, 3]
    await third
    await server.write("up")
    assert await client.read() == "up"


async def test_each_direction_of_a_pair_closes_by_itself() -> None:
    client, server = stream_pair()
    await client.close()
    assert await server.read() is None
    await server.write("still")
    await server.close()
    assert [message async for message in client] == ["still"]


async def test_a_servers_error_comes_after_its_messages() -> None:
    client, server = stream_pair()
    await server.write("before")
    await server.close(at_capacity("full", retry_after_seconds=1))
    assert await client.read() == "before"
    with pytest.raises(StreamBroken) as raised:
        await client.read()
    assert raised.value.reason_name == "AT_CAPACITY"
    with pytest.raises(StreamBroken):
        await client.write("x")


async def test_a_client_that_cancels_is_gone_for_the_server() -> None:
    client, server = stream_pair()
    await client.write("lost")
    await client.close(ServiceError(grpc.StatusCode.CANCELLED, 0, "enough"))  # type: ignore[arg-type]
    with pytest.raises(ClientGone):
        await server.read()
    with pytest.raises(ClientGone):
        await server.write("x")


async def test_a_cancelled_read_loses_no_message() -> None:
    client, server = stream_pair()
    reading = asyncio.create_task(server.read())
    await asyncio.sleep(0)
    reading.cancel()
    await client.write(1)
    await asyncio.wait({reading})
    assert await server.read() == 1


async def test_a_severed_call_breaks_the_client_and_cancels_the_handler() -> None:
    cancelled = asyncio.Event()

    async def handler(stream: MessageStream[Any, Any]) -> None:
        try:
            await stream.write("lost on the way")
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with in_process_call(handler) as stream:
        await asyncio.sleep(0)
        await stream.sever(StreamBroken.of(grpc.StatusCode.UNAVAILABLE, "connection reset"))
        await cancelled.wait()
        with pytest.raises(StreamBroken) as raised:
            await stream.read()
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE


def test_a_buffer_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="max_buffered"):
        stream_pair(max_buffered=0)
