"""A test service with one method of each kind, whose handlers each test supplies."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from draftwire.v1 import drafter_service_pb2, drafter_service_pb2_grpc
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.rpc.server import ServiceServer
from tests.harness.plain_channel import open_channel

SERVICE = "draftwire.test.Probe"


@dataclass
class Probe:
    """Handlers by kind; None omits the method."""

    unary_unary: Callable[..., Any] | None = None
    unary_stream: Callable[..., Any] | None = None
    stream_unary: Callable[..., Any] | None = None
    stream_stream: Callable[..., Any] | None = None
    decode: Callable[[bytes], Any] | None = None
    """Makes requests from bytes, which they are without it."""


def add_probe_to_server(probe: Probe, server: Any) -> None:
    """Registers the service, as generated code does."""
    handlers = {
        kind: getattr(grpc, f"{kind}_rpc_method_handler")(handler, probe.decode)
        for kind, handler in vars(probe).items()
        if handler is not None and kind != "decode"
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))


@dataclass
class Running:
    """A started server and a channel to it."""

    server: ServiceServer
    channel: grpc.aio.Channel

    def method(self, kind: str) -> Callable[..., Any]:
        """Returns the client's callable for the probe's method of a kind."""
        call: Callable[..., Any] = getattr(self.channel, kind)(f"/{SERVICE}/{kind}")
        return call


@asynccontextmanager
async def running(probe: Probe, **settings: Any) -> AsyncIterator[Running]:
    server = ServiceServer(ServiceSettings(**settings))
    server.add(add_probe_to_server, probe)
    await server.start()
    try:
        async with open_channel(server.address, max_message_bytes=64 * 1024 * 1024) as channel:
            yield Running(server, channel)
    finally:
        await server.stop(0)


@pytest.fixture
def serve_probe() -> Callable[..., Any]:
    return running


@pytest.fixture
def make_probe() -> type[Probe]:
    return Probe


class GeneratedServicer(drafter_service_pb2_grpc.DrafterServiceServicer):
    """A service with generated code that implements GetModelInfo only."""

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        return drafter_service_pb2.DrafterServiceGetModelInfoResponse()


@asynccontextmanager
async def generated() -> AsyncIterator[grpc.aio.Channel]:
    server = ServiceServer(ServiceSettings())
    server.add(drafter_service_pb2_grpc.add_DrafterServiceServicer_to_server, GeneratedServicer())
    await server.start()
    try:
        async with open_channel(server.address, max_message_bytes=1024 * 1024) as channel:
            yield channel
    finally:
        await server.stop(0)


@pytest.fixture
def serve_generated() -> Callable[..., Any]:
    return generated
