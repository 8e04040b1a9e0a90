"""Errors of addresses that cannot be reached or that serve no drafter."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from draftwire._auth.security import Security
from draftwire._calls.channel import AsyncChannels
from draftwire.v1.drafter_service_pb2 import DraftRequest
from draftwire_core.pool.drafter.channel import drafter_channels
from draftwire_core.runtime.rpc.message_stream import StreamBroken


async def failure_at(address: str) -> StreamBroken:
    connect = drafter_channels(AsyncChannels(Security()))(address)
    with pytest.raises(StreamBroken) as caught:
        async with connect() as stream:
            await stream.write(DraftRequest())
            await stream.read()
    return caught.value


async def test_nothing_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        error = await failure_at(address)
    assert (error.code, error.status.message) == (grpc.StatusCode.UNAVAILABLE, f"nothing listens at {address}")


@pytest.mark.parametrize(
    ("services", "told"),
    [
        (["draftwire.v1.VerifierService"], "{address} is a verifier, not a drafter"),
        ([], "the server at {address} is not a drafter"),
    ],
)
async def test_another_service(services: list[str], told: str) -> None:
    server = grpc.server(ThreadPoolExecutor(2))
    servicer = health.HealthServicer()
    for each in services:
        servicer.set(each, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        error = await failure_at(address)
    finally:
        server.stop(None).wait()
    assert (error.code, error.status.message) == (grpc.StatusCode.UNIMPLEMENTED, told.format(address=address))
