"""The fake and the real stream, by the same tests."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2

from draftwire_core.runtime.errors import DOMAIN, ServiceError, at_capacity, shutting_down
from draftwire_core.runtime.rpc.grpc_stream import accept_call, open_call
from draftwire_core.runtime.rpc.in_process_stream import in_process_call
from draftwire_core.runtime.rpc.message_stream import MessageStream, StreamBroken
from draftwire_core.runtime.rpc.stream_meter import StreamMeter
from tests.harness.plain_channel import open_channel

Stream = MessageStream[bytes, bytes]
Handler = Callable[[Stream], Awaitable[None]]
Connect = Callable[[Handler], AbstractAsyncContextManager[Stream]]


@pytest.fixture(params=["in process", "loopback"])
def connect(request: pytest.FixtureRequest, serve_probe: Any, make_probe: Any) -> Connect:
    """Opens a call to a handler and yields the client's side of it."""

    @asynccontextmanager
    async def loopback(handler: Handler) -> AsyncIterator[Stream]:
        async def stream_stream(requests: Any, context: Any) -> None:
            async with accept_call(context) as stream:
                await handler(stream)

        async with (
            serve_probe(make_probe(stream_stream=stream_stream)) as running,
            open_call(running.method("stream_stream")) as stream,
        ):
            yield stream

    return in_process_call if request.param == "in process" else loopback


async def echo(stream: Stream) -> None:
    async for message in stream:
        await stream.write(message)


async def hold(stream: Stream) -> None:
    await stream.read()
    await asyncio.Event().wait()


async def test_messages_come_in_order_and_the_end_is_clean(connect: Connect) -> None:
    async with connect(echo) as stream:
        for number in range(50):
            await stream.write(b"%d" % number)
            assert await stream.read() == b"%d" % number
        await stream.close()
        await stream.close()
        assert await stream.read() is None
        assert await stream.read() is None


async def test_both_sides_speak_at_once(connect: Connect) -> None:
    async def handler(stream: Stream) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(count(stream))
            group.create_task(drain(stream))

    async def count(stream: Stream) -> None:
        for number in range(100):
            await stream.write(b"%d" % number)

    async def drain(stream: Stream) -> list[bytes]:
        return [message async for message in stream]

    async with connect(handler) as stream:
        reading = asyncio.create_task(drain(stream))
        await count(stream)
        await stream.close()
        assert await reading == [b"%d" % number for number in range(100)]


async def test_a_service_error_of_the_handler_comes_after_its_messages(connect: Connect) -> None:
    async def handler(stream: Stream) -> None:
        await stream.write(b"before")
        raise at_capacity("full", retry_after_seconds=1)

    async with connect(handler) as stream:
        assert await stream.read() == b"before"
        for _ in range(2):
            with pytest.raises(StreamBroken) as raised:
                await stream.read()
            assert raised.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert (raised.value.reason_name, raised.value.status.message) == ("AT_CAPACITY", "full")
        with pytest.raises(StreamBroken) as raised:
            await stream.write(b"x")
        assert raised.value.reason_name == "AT_CAPACITY"


async def test_closing_with_an_error_ends_the_call_with_it(connect: Connect) -> None:
    async def handler(stream: Stream) -> None:
        await stream.close(shutting_down())
        await stream.close()

    async with connect(handler) as stream:
        with pytest.raises(StreamBroken) as raised:
            await stream.read()
    assert (raised.value.code, raised.value.reason_name) == (grpc.StatusCode.UNAVAILABLE, "SHUTTING_DOWN")


async def test_an_unexpected_error_is_internal(connect: Connect) -> None:
    async def handler(stream: Stream) -> None:
        raise KeyError("secret")

    async with connect(handler) as stream:
        with pytest.raises(StreamBroken) as raised:
            await stream.read()
    assert (raised.value.code, raised.value.reason_name) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in str(raised.value)


async def test_the_handlers_return_ends_the_stream(connect: Connect) -> None:
    async def handler(stream: Stream) -> None:
        await stream.write(b"bye")
        await stream.close()

    async with connect(handler) as stream:
        assert await stream.read() == b"bye"
        assert await stream.read() is None
        with pytest.raises(StreamBroken) as raised:
            await stream.write(b"x")
        assert raised.value.code is grpc.StatusCode.CANCELLED


async def test_writing_after_close_is_a_mistake(connect: Connect) -> None:
    async with connect(echo) as stream:
        await stream.close()
        with pytest.raises(RuntimeError, match="closed"):
            await stream.write(b"x")


async def test_a_deadline_on_iterating_is_a_deadline(connect: Connect) -> None:
    """The deadline may end the stream, but the reader gets TimeoutError and not the stream's error."""
    async with connect(echo) as stream:
        await stream.write(b"once")
        came = []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                async for message in stream:
                    came.append(message)
        assert came == [b"once"]


async def test_a_client_that_cancels_cancels_the_handler(connect: Connect) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(stream: Stream) -> None:
        entered.set()
        try:
            await hold(stream)
        finally:
            cancelled.set()

    async with connect(handler) as stream:
        await stream.write(b"x")
        await entered.wait()
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        await stream.close(ServiceError(grpc.StatusCode.CANCELLED, 0, "enough"))  # type: ignore[arg-type]
        await cancelled.wait()
        with pytest.raises(StreamBroken) as raised:
            await reading
        assert raised.value.code is grpc.StatusCode.CANCELLED
        with pytest.raises(StreamBroken):
            await stream.read()


async def test_leaving_the_call_cancels_the_handler(connect: Connect) -> None:
    entered, cancelled = asyncio.Event(), asyncio.Event()

    async def handler(stream: Stream) -> None:
        entered.set()
        try:
            await hold(stream)
        finally:
            cancelled.set()

    async with connect(handler) as stream:
        await stream.write(b"x")
        await entered.wait()
    await cancelled.wait()


async def test_a_handler_of_tasks_ends_quietly_when_its_client_goes(
    connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    entered, left = asyncio.Event(), asyncio.Event()

    async def flood(stream: Stream) -> None:
        while True:
            await stream.write(bytes(10_000))

    async def handler(stream: Stream) -> None:
        entered.set()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(flood(stream))
                group.create_task(echo(stream))
        finally:
            left.set()

    async with connect(handler) as stream:
        await entered.wait()
        await stream.read()
    await left.wait()
    # grpc has one poller per process, which fails on the loops of finished tests; no service has a second loop.
    faults = [record.message for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert [fault for fault in faults if "PollerCompletionQueue" not in fault] == []


async def test_a_read_that_times_out_loses_nothing(connect: Connect) -> None:
    go_on = asyncio.Event()

    async def handler(stream: Stream) -> None:
        await stream.read()
        await go_on.wait()
        await stream.write(b"late")
        await echo(stream)

    async with connect(handler) as stream:
        await stream.write(b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await stream.read()
        go_on.set()
        assert await stream.read() == b"late"
        await stream.write(b"more")
        assert await stream.read() == b"more"


async def test_a_handlers_read_that_times_out_loses_nothing(connect: Connect) -> None:
    async def handler(stream: Stream) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await stream.read()
        await stream.write(b"ready")
        await echo(stream)

    async with connect(handler) as stream:
        assert await stream.read() == b"ready"
        await stream.write(b"x")
        assert await stream.read() == b"x"


@pytest.mark.parametrize("method", ["write", "write_or_end"])
async def test_a_peer_that_does_not_read_holds_the_writer_up(connect: Connect, method: str) -> None:
    async with connect(hold) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    await getattr(stream, method)(bytes(100_000))


async def test_two_readers_are_a_mistake(connect: Connect) -> None:
    async with connect(hold) as stream:
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="another task"):
            await stream.read()
        reading.cancel()


async def test_a_write_that_times_out_is_followed_by_the_next(connect: Connect) -> None:
    go_on = asyncio.Event()

    async def handler(stream: Stream) -> None:
        await go_on.wait()
        total = 0
        async for message in stream:
            total += len(message)
            if message == b"last":
                await stream.write(b"seen")

    async with connect(handler) as stream:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                while True:
                    await stream.write(bytes(100_000))
        go_on.set()
        await stream.write(b"last")
        assert await stream.read() == b"seen"


async def test_a_server_that_is_gone_is_unavailable(serve_probe: Any, make_probe: Any) -> None:
    async with serve_probe(make_probe()) as running:
        address = running.server.address
    async with open_channel(address, max_message_bytes=1_000_000) as channel:
        async with open_call(channel.stream_stream("/draftwire.test.Probe/stream_stream")) as stream:
            with pytest.raises(StreamBroken) as raised:
                await stream.read()
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE
    assert raised.value.reason_name is None


async def test_a_server_that_stops_breaks_the_stream(serve_probe: Any, make_probe: Any) -> None:
    async def handler(requests: Any, context: Any) -> None:
        async with accept_call(context) as stream:
            await echo(stream)

    async with (
        serve_probe(make_probe(stream_stream=handler)) as running,
        open_call(running.method("stream_stream")) as stream,
    ):
        await stream.write(b"x")
        assert await stream.read() == b"x"
        await running.server.stop(0)
        with pytest.raises(StreamBroken):
            await stream.read()


async def test_a_connection_that_breaks_while_a_stream_is_closed_breaks_the_stream() -> None:
    """grpc raises an undocumented error of its own for this."""
    connected: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def say_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await connected.put(writer)

    listener = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with open_channel(address, max_message_bytes=1_000_000) as channel:
        async with open_call(channel.stream_stream("/draftwire.test.Probe/stream_stream")) as stream:
            closing = asyncio.create_task(stream.close())
            writer = await connected.get()
            listener.close()
            writer.transport.abort()
            with pytest.raises(StreamBroken) as raised:
                await closing
    assert raised.value.code is grpc.StatusCode.UNAVAILABLE


async def test_a_call_has_a_time_limit(serve_probe: Any, make_probe: Any) -> None:
    async def handler(requests: Any, context: Any) -> None:
        async with accept_call(context) as stream:
            await hold(stream)

    async with (
        serve_probe(make_probe(stream_stream=handler)) as running,
        open_call(running.method("stream_stream"), timeout_seconds=0.1) as stream,
    ):
        with pytest.raises(StreamBroken) as raised:
            await stream.read()
    assert raised.value.code is grpc.StatusCode.DEADLINE_EXCEEDED


class TestStreamBroken:
    def test_when_to_ask_again(self) -> None:
        assert StreamBroken(at_capacity("full", 1.5).to_status()).retry_seconds == 1.5
        assert StreamBroken.of(grpc.StatusCode.UNAVAILABLE, "gone").retry_seconds is None

    def test_details_that_cannot_be_read_are_passed_over(self) -> None:
        status = status_pb2.Status(code=8, message="full")
        for kind in ("ErrorInfo", "RetryInfo"):
            status.details.add(type_url=f"type.googleapis.com/google.rpc.{kind}", value=b"\xff\xff")
        broken = StreamBroken(status)
        assert (broken.reason_name, broken.retry_seconds) == (None, None)


async def test_bytes_that_are_no_message_end_the_stream(serve_probe: Any, make_probe: Any) -> None:
    async def stream_stream(requests: Any, context: Any) -> None:
        async with accept_call(context) as stream:
            await stream.write(b"\xff\xff\xff")

    sizes: list[int] = []
    async with serve_probe(make_probe(stream_stream=stream_stream)) as running:
        meter = StreamMeter(status_pb2.Status.FromString, sizes.append)
        method = running.channel.stream_stream("/draftwire.test.Probe/stream_stream", response_deserializer=meter)
        async with open_call(method, meter=meter) as stream:
            assert await stream.read() is None
            assert stream.take_bytes() == 3, "they were looked at"
    assert sizes == [3]


async def test_what_reading_and_writing_take_is_measured(serve_probe: Any, make_probe: Any) -> None:
    large = status_pb2.Status(message="x" * 1_000_000)

    async def stream_stream(requests: Any, context: Any) -> None:
        async with accept_call(context) as stream:
            while await stream.read() is not None:
                await stream.write(large.SerializeToString())

    looks = 0

    def look() -> float:
        nonlocal looks
        looks += 1
        return 0.001 * looks

    async with serve_probe(make_probe(stream_stream=stream_stream)) as running:
        meter = StreamMeter(status_pb2.Status.FromString, lambda _: None, spent=look)
        method = running.channel.stream_stream(
            "/draftwire.test.Probe/stream_stream",
            request_serializer=status_pb2.Status.SerializeToString,
            response_deserializer=meter,
        )
        async with open_call(method, meter=meter) as stream:
            assert (stream.take_bytes(), stream.take_seconds()) == (0, 0.0)
            await stream.write(status_pb2.Status(message="hello"))
            writing = stream.take_seconds()
            assert writing == pytest.approx(0.001 * round(1000 * writing)), "whole looks at the clock"
            assert writing >= 0.001
            assert stream.take_bytes() == 0
            assert (await stream.read()).message == large.message
            assert stream.take_bytes() == large.ByteSize()
            assert stream.take_seconds() >= 0.001
            assert (stream.take_bytes(), stream.take_seconds()) == (0, 0.0)


async def test_what_held_a_message_up_is_not_its_own() -> None:
    seconds = iter((0.0, 60.0))
    meter = StreamMeter(status_pb2.Status.FromString, lambda _: None, spent=lambda: next(seconds))

    async def read() -> int:
        meter(b"")
        return 7

    assert await meter.timed(read()) == 7
    assert meter.take_seconds() == pytest.approx(0.01)


async def test_an_operation_that_is_timed_can_be_cancelled_and_fail() -> None:
    meter = StreamMeter(status_pb2.Status.FromString, lambda _: None)
    cleaned = []

    async def read() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    async def timed() -> None:
        await meter.timed(read())

    task = asyncio.create_task(timed())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await meter.timed(fails())
    assert meter.take_seconds() > 0


@pytest.mark.parametrize("details", [b"\xff\xff\xff", status_pb2.Status(code=5).SerializeToString()])
async def test_details_that_are_damaged_or_contradict_the_code(
    serve_probe: Any, make_probe: Any, details: bytes
) -> None:
    """As a peer may send them, or a line that corrupts bytes: the code counts."""

    async def stream_stream(requests: Any, context: Any) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", details),))
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not now")

    async with (
        serve_probe(make_probe(stream_stream=stream_stream)) as running,
        open_call(running.method("stream_stream")) as stream,
    ):
        with pytest.raises(StreamBroken) as caught:
            await stream.read()
    assert caught.value.status.code == grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert caught.value.status.message == "not now"


def test_few_details_of_a_status_are_looked_at() -> None:
    """The other side may send millions, which a stream would wait for."""
    told, empty = AnyMessage(), AnyMessage()
    told.Pack(error_details_pb2.ErrorInfo(domain=DOMAIN, reason="AT_CAPACITY"))
    for before, reason in ((3, "AT_CAPACITY"), (1000, None)):
        broken = StreamBroken(status_pb2.Status(code=8, details=[*[empty] * before, told]))
        assert broken.reason_name == reason
