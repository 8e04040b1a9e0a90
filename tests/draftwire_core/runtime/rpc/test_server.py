import asyncio
import socket
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from draftwire.errors import from_rpc_error
from draftwire.v1.drafter_service_pb2_grpc import DrafterServiceServicer, add_DrafterServiceServicer_to_server
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.rpc.server import ServiceServer

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
PROBE = "draftwire.test.Probe"


async def check(channel: grpc.aio.Channel, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    response = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    status: int = response.status
    return status


@pytest.mark.parametrize("service", ["", PROBE])
async def test_a_watch_sees_every_change_and_ends_with_the_server(
    service: str, serve_probe: Any, make_probe: Any
) -> None:
    async with serve_probe(make_probe()) as running:
        stub: Any = health_pb2_grpc.HealthStub(running.channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service=service))
        assert (await watch.read()).status == SERVING
        await running.server.set_serving(False)
        assert (await watch.read()).status == NOT_SERVING
        await running.server.set_serving(True)
        assert (await watch.read()).status == SERVING
        assert await check(running.channel, service) == SERVING
        await running.server.begin_shutdown()
        assert (await watch.read()).status == NOT_SERVING
        await running.server.set_serving(True)
        assert await check(running.channel, service) == NOT_SERVING
        async with asyncio.timeout(5):  # the open Watch does not delay the stop until the grace time ends
            await running.server.stop(60)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watch.read()
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_the_health_of_an_unknown_service(serve_probe: Any, make_probe: Any) -> None:
    async with serve_probe(make_probe()) as running:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await check(running.channel, "nobody.Knows")
        assert raised.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_server_may_start_before_it_serves(make_probe: Any) -> None:
    server = ServiceServer(ServiceSettings())
    await server.start(serving=False)
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            assert await check(channel, "") == NOT_SERVING
            await server.set_serving(True)
            assert await check(channel, "") == SERVING
    finally:
        await server.stop(0)


async def test_while_the_service_is_loaded_its_port_is_open_and_says_not_yet() -> None:
    server = ServiceServer(ServiceSettings())
    await server.open()
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            assert await check(channel, "") == NOT_SERVING
            call: Any = channel.unary_unary("/draftwire.v1.VerifierService/GetModelInfo")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(b"")
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            error = from_rpc_error(raised.value)
            assert str(error).startswith("the service is loading its model")
            assert (error.reason, error.retry_after_seconds) == ("SHUTTING_DOWN", 2.0)
            server.add(add_DrafterServiceServicer_to_server, DrafterServiceServicer())
            await server.start()
            assert await check(channel, "") == SERVING
            assert await check(channel, "draftwire.v1.DrafterService") == SERVING
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(b"")
            assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        await server.stop(0)


async def test_an_open_port_is_not_shared() -> None:
    first = ServiceServer(ServiceSettings())
    await first.open()
    second = ServiceServer(ServiceSettings(listen=first.address))
    with pytest.raises(StartupError, match="Address already in use"):
        await second.open()
    await first.stop(0)
    await second.stop(0)


async def test_reflection_lists_the_services_and_knows_their_files(serve_generated: Any) -> None:
    async with serve_generated() as channel:
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol="draftwire.v1.DrafterService"),
        ]
        stub: Any = reflection_pb2_grpc
        call = stub.ServerReflectionStub(channel).ServerReflectionInfo(iter(requests))
        listed, file = [response async for response in call]
    assert {service.name for service in listed.list_services_response.service} == {
        "draftwire.v1.DrafterService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    }
    assert file.file_descriptor_response.file_descriptor_proto


async def test_a_port_in_use_is_named(serve_probe: Any, make_probe: Any) -> None:
    async with serve_probe(make_probe()) as running:
        second = ServiceServer(ServiceSettings(listen=running.server.address))
        with pytest.raises(StartupError, match=f"cannot listen on {running.server.address}: Address already in use"):
            await second.start()
        with pytest.raises(StartupError, match=f"cannot listen on {running.server.address}: Address already in use"):
            await second.open()
        await second.stop(0)


async def test_grpc_itself_does_not_share_a_port(
    serve_probe: Any, make_probe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before the bind may come too early; then grpc itself must refuse."""
    monkeypatch.setattr("draftwire_core.runtime.rpc.server._check_bindable", lambda address: None)
    async with serve_probe(make_probe()) as running:
        second = ServiceServer(ServiceSettings(listen=running.server.address))
        with pytest.raises(StartupError, match=f"cannot listen on {running.server.address}: "):
            await second.start()
        await second.stop(0)


async def test_a_name_of_which_one_address_is_in_use_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        server = ServiceServer(ServiceSettings(listen=f"localhost:{holder.getsockname()[1]}"))
        with pytest.raises(StartupError, match="Address already in use"):
            await server.start()
        await server.stop(0)


@pytest.mark.parametrize("listen", ["203.0.113.1:0", "no-such-host.invalid:0"])
async def test_an_address_that_is_not_ours_is_named(listen: str) -> None:
    server = ServiceServer(ServiceSettings(listen=listen, insecure=True))
    with pytest.raises(StartupError, match=f"cannot listen on {listen}: "):
        await server.start()
    await server.stop(0)


async def test_a_server_that_was_not_started_has_no_address() -> None:
    server = ServiceServer(ServiceSettings())
    with pytest.raises(RuntimeError, match="not been started"):
        _ = server.address
    with pytest.raises(RuntimeError, match="not been started"):
        await server.set_serving(True)
    await server.stop(0)


async def test_a_port_is_free_again_after_the_stop() -> None:
    first = ServiceServer(ServiceSettings())
    await first.start()
    address = first.address
    await first.stop(0)
    second = ServiceServer(ServiceSettings(listen=address))
    await second.start()
    assert second.address == address
    await second.stop(0)
