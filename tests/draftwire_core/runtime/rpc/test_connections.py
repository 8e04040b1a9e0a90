"""Limits on what a caller may hold open: idle connections, many connections, many calls, large headers."""

import asyncio
from contextlib import suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from draftwire._calls.channel import CHANNEL_OPTIONS
from draftwire_core.runtime.rpc import channel
from draftwire_core.runtime.rpc.channel import client_options
from tests.draftwire_core.runtime.conftest import SERVICE, add_probe_to_server
from tests.harness.plain_channel import open_channel
from tests.harness.waiting import PATIENCE


async def healthy(address: str) -> bool:
    """Whether a new connection is served."""
    async with open_channel(address, 1 << 20) as opened:
        stub: Any = health_pb2_grpc.HealthStub(opened)
        try:
            await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        except grpc.aio.AioRpcError:
            return False
    return True


async def until_healthy(address: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await healthy(address):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_one_that_says_nothing_is_closed(
    serve_probe: Any, make_probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_HANDSHAKE_MS", 300)
    async with serve_probe(make_probe()) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.bound_port)
        async with asyncio.timeout(PATIENCE):
            await reader.read()  # returns when the server closes the connection
        writer.close()


async def test_one_without_calls_is_closed_and_one_with_a_call_is_not(
    serve_probe: Any, make_probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_IDLE_MS", 300)
    async with (
        serve_probe(make_probe()) as running,
        open_channel(running.server.address, 1 << 20) as idle,
    ):
        watching: Any = health_pb2_grpc.HealthStub(running.channel)
        watch = watching.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stub: Any = health_pb2_grpc.HealthStub(idle)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        async with asyncio.timeout(PATIENCE):
            while (state := idle.get_state()) is grpc.ChannelConnectivity.READY:
                await idle.wait_for_state_change(state)
        await running.server.set_serving(False)
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)  # reconnects by itself
        watch.cancel()


async def test_there_are_so_many_at_once_and_no_more(serve_probe: Any, make_probe: Any) -> None:
    async with serve_probe(make_probe(), max_connections=2) as running:
        held = [await asyncio.open_connection("127.0.0.1", running.server.bound_port) for _ in range(2)]
        for reader, _ in held:
            assert await reader.read(1)  # the server's first bytes show that it counts this connection
        assert not await healthy(running.server.address)
        for _, writer in held:
            writer.close()
        await until_healthy(running.server.address)


async def test_a_connection_runs_so_many_calls_at_once_and_no_more(serve_probe: Any, make_probe: Any) -> None:
    running_now = most = 0
    go_on = asyncio.Event()

    async def wait(request: bytes, _: Any) -> bytes:
        nonlocal running_now, most
        running_now += 1
        most = max(most, running_now)
        await go_on.wait()
        running_now -= 1
        return request

    async with serve_probe(make_probe(unary_unary=wait), max_calls_per_connection=3) as running:
        # The first call delivers the server's settings to the client.
        stub: Any = health_pb2_grpc.HealthStub(running.channel)
        await stub.Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
        calls = [running.method("unary_unary")(b"x") for _ in range(8)]
        async with asyncio.timeout(PATIENCE):
            while running_now < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert most == 3
        go_on.set()
        async with asyncio.timeout(PATIENCE):
            answers = await asyncio.gather(*calls, return_exceptions=True)
        assert most == 3
        # gRPC refuses a call that arrives before the one whose place it takes is fully closed; clients may retry it.
        refused = [answer for answer in answers if isinstance(answer, grpc.aio.AioRpcError)]
        assert all(error.code() is grpc.StatusCode.UNAVAILABLE for error in refused)
        assert answers.count(b"x") == 8 - len(refused) >= 3


async def test_large_metadata_ends_the_call_before_its_handler(serve_probe: Any, make_probe: Any) -> None:
    handled: list[bytes] = []

    async def echo(request: bytes, _: Any) -> bytes:
        handled.append(request)
        return request

    async with serve_probe(make_probe(unary_unary=echo)) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.method("unary_unary")(b"x", metadata=(("extra", "a" * 100_000),))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not handled
        assert await running.method("unary_unary")(b"y") == b"y"


async def test_a_flood_of_pings_ends_the_connection(serve_probe: Any, make_probe: Any) -> None:
    """Speaks raw HTTP/2: no gRPC client would send this."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    ping = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + b"12345678"
    async with serve_probe(make_probe()) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.server.bound_port)
        writer.write(preface + settings + 20 * ping)
        received = b""
        async with asyncio.timeout(PATIENCE):
            with suppress(ConnectionResetError):
                while part := await reader.read(65536):
                    received += part
        writer.close()
        assert b"too_many_pings" in received
        assert await healthy(running.server.address)


async def test_a_compressed_message_is_not_inflated(serve_probe: Any, make_probe: Any) -> None:
    """Ten compressed kilobytes may become ten megabytes, and gRPC would check the size only afterwards."""
    handled: list[bytes] = []

    async def echo(request: bytes, _: Any) -> bytes:
        handled.append(request)
        return request

    async with (
        serve_probe(make_probe(unary_unary=echo)) as running,
        grpc.aio.insecure_channel(running.server.address) as other,
    ):
        call: Any = other.unary_unary(f"/{SERVICE}/unary_unary")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(bytes(10_000_000), compression=grpc.Compression.Gzip)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert not handled
        assert await call(b"x") == b"x"


@pytest.mark.parametrize("options", [client_options(1 << 20), CHANNEL_OPTIONS], ids=["services", "SDK"])
async def test_a_compressed_answer_is_not_inflated(options: Any, make_probe: Any) -> None:
    async def answer(request: bytes, _: Any) -> bytes:
        return bytes(10_000_000)

    server = grpc.aio.server(compression=grpc.Compression.Gzip)
    add_probe_to_server(make_probe(unary_unary=answer), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    # A malicious server ignores what its client accepts. This one respects it, so the client accepts everything.
    takes_anything = [option for option in options if "algorithms" not in option[0]]
    assert len(takes_anything) == len(options) - 1
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=takes_anything) as client:
        call: Any = client.unary_unary(f"/{SERVICE}/unary_unary")
        assert len(await call(b"")) < 100_000
    await server.stop(0)
