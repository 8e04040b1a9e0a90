import asyncio

import grpc
import pytest

from draftwire_core.runtime.rpc.in_process_stream import stream_pair
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from draftwire_core.runtime.rpc.stream_writer import OutboxFull, StreamWriter


async def test_messages_are_written_in_order_and_closing_ends_the_stream() -> None:
    client, server = stream_pair()
    writer: StreamWriter[int] = StreamWriter(client, max_queued=100)
    async with asyncio.TaskGroup() as group:
        group.create_task(writer.run())
        for number in range(50):
            writer.send(number)
        assert await server.read() == 0
        for number in range(50, 60):
            writer.send(number)
        writer.close()
        assert [message async for message in server] == list(range(1, 60))


async def test_a_full_outbox_refuses_without_waiting() -> None:
    client, _ = stream_pair(max_buffered=1)
    writer: StreamWriter[int] = StreamWriter(client, max_queued=2)
    writer.send(1)
    assert writer.offer(2)
    assert not writer.offer(3)
    with pytest.raises(OutboxFull, match="2 messages"):
        writer.send(3)
    assert writer.queued == 2


async def test_a_closed_outbox_takes_nothing() -> None:
    client, _ = stream_pair()
    writer: StreamWriter[int] = StreamWriter(client, max_queued=2)
    writer.close()
    assert not writer.offer(1)
    with pytest.raises(RuntimeError, match="closed"):
        writer.send(1)


async def test_a_broken_stream_ends_the_writer_and_closes_the_outbox() -> None:
    client, _ = stream_pair()
    writer: StreamWriter[int] = StreamWriter(client, max_queued=2)
    await client.sever(StreamBroken.of(grpc.StatusCode.UNAVAILABLE, "reset"))
    writer.send(1)
    with pytest.raises(StreamBroken):
        await writer.run()
    assert not writer.offer(2)
    assert writer.queued == 0


async def test_at_least_one_message_must_fit() -> None:
    client, _ = stream_pair()
    with pytest.raises(ValueError, match="max_queued"):
        StreamWriter(client, max_queued=0)
