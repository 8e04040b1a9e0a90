import asyncio
import gc
import io
import json
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest
import structlog
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from draftwire_core.runtime.errors import at_capacity, invalid_field
from draftwire_core.runtime.process.logs import configure_logs
from draftwire_core.runtime.rpc.interceptors import mark_routine
from tests.harness.waiting import PATIENCE

KINDS = ["unary_unary", "unary_stream", "stream_unary", "stream_stream"]


async def consume(kind: str, method: Callable[..., Any], request: bytes = b"x", **options: Any) -> list[bytes]:
    """Calls a method of any kind with one request and returns the responses."""
    call = method(iter([request]) if kind.startswith("stream") else request, **options)
    if kind.endswith("unary"):
        return [await call]
    return [response async for response in call]


def raising(kind: str, error: Exception) -> Callable[..., Any]:
    async def unary(request: Any, context: Any) -> bytes:
        raise error

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"before"
        raise error

    return unary if kind.endswith("unary") else stream


async def finished_calls(events: list[Any]) -> list[Any]:
    """Returns the events of finished calls, once there are any: a client may see an end before the service notes it."""
    deadline = time.monotonic() + PATIENCE
    while not (found := [event for event in events if event["event"] == "call finished"]):
        assert time.monotonic() < deadline, "no call has finished"
        await asyncio.sleep(0.01)
    return found


def rich_status(error: grpc.aio.AioRpcError) -> status_pb2.Status:
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert isinstance(status, status_pb2.Status)
    return status


def error_info(status: status_pb2.Status) -> error_details_pb2.ErrorInfo:
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


@pytest.fixture
def events() -> Any:
    with structlog.testing.capture_logs(processors=[structlog.contextvars.merge_contextvars]) as captured:
        yield captured


@pytest.mark.parametrize("kind", KINDS)
async def test_a_service_error_reaches_the_client_with_its_details(
    kind: str, serve_probe: Any, make_probe: Any, events: list[Any]
) -> None:
    probe = make_probe(**{kind: raising(kind, invalid_field("max_tokens", "must be at least 1"))})
    async with serve_probe(probe) as running:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await consume(kind, running.method(kind))
    status = rich_status(raised.value)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (status.message, error_info(status).reason) == ("max_tokens: must be at least 1", "INVALID_FIELD")
    bad_request = error_details_pb2.BadRequest()
    assert status.details[1].Unpack(bad_request)
    assert bad_request.field_violations[0].field == "max_tokens"
    [finished] = [event for event in events if event["event"] == "call finished"]
    assert finished["code"] == "INVALID_ARGUMENT"
    assert finished["method"].endswith(kind)
    assert finished["peer"].startswith("ipv4:127.0.0.1")
    assert finished["seconds"] >= 0
    assert not [event for event in events if event["log_level"] == "error"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unexpected_error_is_internal_and_logged_once(
    kind: str, serve_probe: Any, make_probe: Any, events: list[Any]
) -> None:
    async with serve_probe(make_probe(**{kind: raising(kind, KeyError("secret"))})) as running:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await consume(kind, running.method(kind))
    assert raised.value.code() is grpc.StatusCode.INTERNAL
    info = error_info(rich_status(raised.value))
    assert info.reason == "INTERNAL"
    assert "secret" not in str(raised.value.details())
    [logged] = [event for event in events if event["log_level"] == "error"]
    assert logged["incident"] == info.metadata["incident"]
    assert logged["incident"] in str(raised.value.details())
    assert isinstance(logged["exc_info"], KeyError)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_succeeds(kind: str, serve_probe: Any, make_probe: Any, events: list[Any]) -> None:
    async def unary(request: Any, context: Any) -> bytes:
        return b"done"

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield b"one"
        yield b"two"

    async with serve_probe(make_probe(**{kind: unary if kind.endswith("unary") else stream})) as running:
        responses = await consume(kind, running.method(kind))
    assert responses == ([b"done"] if kind.endswith("unary") else [b"one", b"two"])
    assert [event["code"] for event in events if event["event"] == "call finished"] == ["OK"]


async def test_a_service_error_of_a_task_group_is_told(serve_probe: Any, make_probe: Any) -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        async def fail() -> None:
            raise at_capacity("full", retry_after_seconds=2)

        async with asyncio.TaskGroup() as group:
            group.create_task(fail())
        return b""

    async with serve_probe(make_probe(unary_unary=handler)) as running:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await running.method("unary_unary")(b"x")
    assert error_info(rich_status(raised.value)).reason == "AT_CAPACITY"


class Held:
    """A request, or an object of a handler, that may be large."""

    def __init__(self, raw: bytes = b"") -> None:
        pass


@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_a_refused_request_stays_in_no_reference_cycle(kind: str, serve_probe: Any, make_probe: Any) -> None:
    refused: list[weakref.ref[Held]] = []

    async def refuse(request: Held) -> None:
        own = Held()
        refused.extend([weakref.ref(request), weakref.ref(own)])
        raise invalid_field("text", "is too long")

    async def unary(request: Held, context: Any) -> bytes:
        await refuse(request)
        return b""

    async def stream(request: Held, context: Any) -> AsyncIterator[bytes]:
        await refuse(request)
        yield b""

    probe = make_probe(**{kind: unary if kind == "unary_unary" else stream}, decode=Held)
    gc.disable()
    try:
        async with serve_probe(probe) as running:
            with pytest.raises(grpc.aio.AioRpcError):
                await consume(kind, running.method(kind))
            assert len(refused) == 2
            async with asyncio.timeout(PATIENCE):
                while any(each() is not None for each in refused):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    finally:
        gc.enable()


async def test_the_handlers_own_abort_is_left_alone(serve_probe: Any, make_probe: Any, events: list[Any]) -> None:
    async def handler(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.DATA_LOSS, "gone")
        raise AssertionError

    async with serve_probe(make_probe(unary_unary=handler)) as running:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await running.method("unary_unary")(b"x")
    assert (raised.value.code(), raised.value.details()) == (grpc.StatusCode.DATA_LOSS, "gone")
    assert [event["code"] for event in await finished_calls(events)] == ["DATA_LOSS"]


@pytest.mark.parametrize("fails", [True, False], ids=["refused", "answered"])
@pytest.mark.parametrize("kind", ["unary_unary", "unary_stream"])
async def test_calls_that_end_at_their_deadlines_log_no_traceback(
    kind: str, fails: bool, serve_probe: Any, make_probe: Any
) -> None:
    """The service learns late of calls and of their ends, as on a busy machine: what it answers cannot be sent."""
    output = io.StringIO()
    configure_logs("json", "info", output)

    def answer(request: bytes) -> bytes:
        if request == b"first":
            time.sleep(0.03)
        elif fails:
            raise invalid_field("name", "must not be empty")
        return b"x"

    async def unary(request: Any, context: Any) -> bytes:
        return answer(request)

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        yield answer(request)

    def call(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            method = getattr(channel, kind)(f"/draftwire.test.Probe/{kind}")
            for _ in range(4):
                requests = [b"first", *[b"x"] * 32]
                if kind == "unary_unary":
                    calls = [method.future(each, timeout=0.01) for each in requests]
                    assert all(call.exception() or call.result() for call in calls)
                else:
                    for each in [method(each, timeout=0.01) for each in requests]:
                        with suppress(grpc.RpcError):
                            list(each)

    async with serve_probe(make_probe(**{kind: unary if kind == "unary_unary" else stream})) as running:
        await asyncio.to_thread(call, running.server.address)
    lines = [json.loads(line) for line in output.getvalue().splitlines()]
    assert any(line["event"] == "call finished" for line in lines)
    assert {line["level"] for line in lines} == {"info"}
    assert not any("exception" in line for line in lines)


@pytest.mark.parametrize(("timeout", "code"), [(None, "CANCELLED"), (1.0, "DEADLINE_EXCEEDED")])
async def test_cancelling_a_stream_closes_its_generator_before_the_call_is_over(
    timeout: float | None, code: str, serve_probe: Any, make_probe: Any, events: list[Any]
) -> None:
    closed = asyncio.Event()

    async def handler(request: bytes, context: Any) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 10_000
        finally:
            closed.set()

    async with serve_probe(make_probe(unary_stream=handler)) as running:
        call = running.method("unary_stream")(b"x", timeout=timeout)
        await call.read()  # after this, flow control blocks the writer
        if timeout is None:
            call.cancel()
        await asyncio.wait_for(closed.wait(), PATIENCE)
    [finished] = [event for event in events if event["event"] == "call finished"]
    assert finished["code"] in (code, "CANCELLED")  # the client's deadline may expire just before the server's
    assert not [event for event in events if event["log_level"] == "error"]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_request_that_is_too_large_gets_a_reason(kind: str, serve_probe: Any, make_probe: Any) -> None:
    async def unary(request: Any, context: Any) -> bytes:
        return b"".join([part async for part in request]) if kind.startswith("stream") else b""

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        if kind.startswith("stream"):
            async for part in request:
                yield part
        yield b""

    probe = make_probe(**{kind: unary if kind.endswith("unary") else stream})
    async with serve_probe(probe, max_message_bytes=100_000) as running:
        assert await consume(kind, running.method(kind), bytes(100_000))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await consume(kind, running.method(kind), bytes(100_001))
    assert raised.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    info = error_info(rich_status(raised.value))
    assert (info.reason, info.metadata["size"], info.metadata["limit"]) == ("MESSAGE_TOO_LARGE", "100001", "100000")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_response_that_is_too_large_gets_a_reason(kind: str, serve_probe: Any, make_probe: Any) -> None:
    async def read(request: Any) -> None:
        if kind.startswith("stream"):  # or grpcio's client may still be sending, and report that instead
            assert [each async for each in request] == [b"x"]

    async def unary(request: Any, context: Any) -> bytes:
        await read(request)
        return bytes(100_001)

    async def stream(request: Any, context: Any) -> AsyncIterator[bytes]:
        await read(request)
        yield bytes(100_001)

    probe = make_probe(**{kind: unary if kind.endswith("unary") else stream})
    async with serve_probe(probe, max_message_bytes=100_000) as running:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await consume(kind, running.method(kind))
    assert error_info(rich_status(raised.value)).reason == "MESSAGE_TOO_LARGE"


async def test_bytes_that_are_no_message_are_an_invalid_argument(serve_generated: Any) -> None:
    async with serve_generated() as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary("/draftwire.v1.DrafterService/GetModelInfo")(b"\xff\xff")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_an_unknown_method_is_unimplemented(serve_probe: Any, make_probe: Any) -> None:
    async with serve_probe(make_probe()) as running:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await running.method("unary_unary")(b"x")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_new_calls_are_refused_during_the_shutdown_while_old_ones_go_on(
    serve_probe: Any, make_probe: Any
) -> None:
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def handler(request: bytes, context: Any) -> bytes:
        entered.set()
        await go_on.wait()
        return b"late"

    async with serve_probe(make_probe(unary_unary=handler)) as running:
        old = asyncio.ensure_future(running.method("unary_unary")(b"x"))
        await entered.wait()
        await running.server.begin_shutdown()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await running.method("unary_unary")(b"x")
        assert error_info(rich_status(raised.value)).reason == "SHUTTING_DOWN"
        go_on.set()
        assert await old == b"late"


async def test_a_call_that_changes_nothing_is_logged_for_debugging(
    serve_probe: Any, make_probe: Any, events: list[Any]
) -> None:
    async def beat(request: bytes, context: Any) -> bytes:
        if request == b"news":
            return b"first"
        mark_routine()
        if request == b"bad":
            raise invalid_field("request", "is bad")
        return b"again"

    async with serve_probe(make_probe(unary_unary=beat)) as running:
        method = running.method("unary_unary")
        for request in (b"news", b"same", b"news"):
            await method(request)
        with pytest.raises(grpc.aio.AioRpcError):
            await method(b"bad")
    finished = [event["log_level"] for event in events if event["event"] == "call finished"]
    assert finished == ["info", "debug", "info", "info"]
