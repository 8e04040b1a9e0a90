"""A client that is connected to another kind of service."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from draftwire import AsyncClient, Client, UnimplementedError
from tests.harness.waiting import PATIENCE

VERIFIER, DRAFTER = "draftwire.v1.VerifierService", "draftwire.v1.DrafterService"


@contextmanager
def serving(*services: str, tells_health: bool = True) -> Iterator[str]:
    """A server that reports the health of these services and has none of their methods."""
    server = grpc.server(ThreadPoolExecutor(4))
    if tells_health:
        servicer = health.HealthServicer()
        for each in services:
            servicer.set(each, health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None).wait()


@pytest.mark.parametrize(
    ("services", "told"),
    [
        ([DRAFTER], "{address} is a drafter, not a verifier"),
        (
            [VERIFIER],
            "{address} is a verifier that does not have this call: it is older than this client (Method not found!)",
        ),
        (["another.Service"], "the server at {address} is not a verifier"),
    ],
)
async def test_instead_of_a_verifier(services: list[str], told: str) -> None:
    with serving(*services) as address:
        expected = told.format(address=address)
        with Client(address, timeout=PATIENCE) as client:
            for call in (
                lambda: client.generate("x"),
                client.model_info,
                client.drafters.list,
                lambda: client.tokenize("x"),
            ):
                with pytest.raises(UnimplementedError) as caught:
                    call()
                assert str(caught.value) == expected
                assert caught.value.details == "Method not found!"
        async with AsyncClient(address, timeout=PATIENCE) as client:
            for awaited in (client.generate("x"), client.model_info(), client.drafters.list()):
                with pytest.raises(UnimplementedError) as caught:
                    await awaited
                assert str(caught.value) == expected


async def test_instead_of_a_drafter() -> None:
    with serving(VERIFIER, "draftwire.v1.DrafterPoolService") as address:
        with Client(address, timeout=PATIENCE) as client, pytest.raises(UnimplementedError) as caught:
            client.drafters.load_model(address, "models/draft")
        assert str(caught.value) == f"{address} is a verifier, not a drafter"
        async with AsyncClient(address, timeout=PATIENCE) as client:
            with pytest.raises(UnimplementedError, match="is a verifier, not a drafter"):
                await client.drafters.load_state(address)


def test_a_server_that_tells_no_health() -> None:
    with serving(tells_health=False) as address:
        with Client(address, timeout=PATIENCE) as client, pytest.raises(UnimplementedError) as caught:
            client.model_info()
        assert str(caught.value) == f"the server at {address} is not a verifier"
