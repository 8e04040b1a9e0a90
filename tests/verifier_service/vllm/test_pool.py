"""The pool's calls at the verifier's port, passed on over a real connection to a pool elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from structlog.testing import capture_logs

from draftwire import AsyncClient
from draftwire.errors import DraftwireError
from draftwire.v1.drafter_pool_service_pb2 import ListDraftersRequest, RegisterDrafterRequest, WatchDraftersRequest
from draftwire.v1.drafter_pool_service_pb2_grpc import (
    DrafterPoolServiceStub,
    add_DrafterPoolServiceServicer_to_server,
)
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.rpc.server import ServiceServer
from tests.harness.stand_ins.fake_verifier import FakeVerifier, rich_status
from tests.harness.waiting import PATIENCE
from verifier_service.vllm.pool import ForwardedPool, pool_channel


@asynccontextmanager
async def forwarded(fake: FakeVerifier) -> AsyncIterator[tuple[str, ForwardedPool]]:
    """Yields the address of the forwarding service, and this service."""
    server = ServiceServer(ServiceSettings())
    async with pool_channel(fake.address, 1 << 20) as channel:
        pool = ForwardedPool(DrafterPoolServiceStub(channel))  # type: ignore[no-untyped-call]
        server.add(add_DrafterPoolServiceServicer_to_server, pool)
        await server.start()
        try:
            yield server.address, pool
        finally:
            await server.stop(0)


def test_the_pool_is_used_as_if_it_were_here() -> None:
    async def run(fake: FakeVerifier) -> None:
        async with forwarded(fake) as (address, _), AsyncClient(address, timeout=PATIENCE) as client:
            names = [each.name for each in await client.drafters.list()]
            await client.drafters.attach("other:50052", name="new", labels={"a": "b"})
            await client.drafters.swap(names[0], "new")
            await client.drafters.detach("new")

    with FakeVerifier() as fake:
        asyncio.run(run(fake))
        assert fake.calls == [
            "ListDrafters",
            "AttachDrafter",
            "SwapDrafter",
            "DetachDrafter",
        ]
        assert fake.attachments[0].labels == {"a": "b"}


def test_no_proxy_is_asked_for_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(fake: FakeVerifier) -> None:
        async with pool_channel(fake.address, 1 << 20) as channel:
            stub = DrafterPoolServiceStub(channel)  # type: ignore[no-untyped-call]
            assert (await stub.ListDrafters(ListDraftersRequest(), timeout=PATIENCE)).drafters

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for variable in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(variable, raising=False)
    with FakeVerifier() as fake:
        asyncio.run(run(fake))


def test_an_error_of_the_pool_keeps_its_details() -> None:
    async def run(fake: FakeVerifier) -> DraftwireError:
        async with forwarded(fake) as (address, _), AsyncClient(address, timeout=PATIENCE) as client:
            with pytest.raises(DraftwireError) as caught:
                await client.drafters.detach("nobody")
            return caught.value

    with FakeVerifier() as fake:
        fake.fails_on["DetachDrafter"] = rich_status(
            grpc.StatusCode.NOT_FOUND, "none named 'nobody'", "DRAFTER_NOT_FOUND"
        )
        error = asyncio.run(run(fake))
    assert type(error).__name__ == "DrafterNotFoundError" and "nobody" in str(error)


def test_heartbeats_stay_out_of_the_log() -> None:
    async def run(fake: FakeVerifier) -> None:
        async with forwarded(fake) as (address, _), grpc.aio.insecure_channel(address) as channel:
            pool = DrafterPoolServiceStub(channel)  # type: ignore[no-untyped-call]
            for leaving in (False, False, False, True, False):
                await pool.RegisterDrafter(RegisterDrafterRequest(name="new", address="other:50052", leaving=leaving))

    with FakeVerifier() as fake, capture_logs() as events:
        asyncio.run(run(fake))
    levels = [event["log_level"] for event in events if event["event"] == "call finished"]
    assert levels == ["info", "debug", "debug", "info", "info"]


def test_watches_end_with_the_verifier() -> None:
    async def run(fake: FakeVerifier) -> grpc.aio.AioRpcError:
        async with forwarded(fake) as (address, pool), grpc.aio.insecure_channel(address) as channel:
            watch = DrafterPoolServiceStub(channel).WatchDrafters(WatchDraftersRequest())  # type: ignore[no-untyped-call]
            assert [each.name for each in (await watch.read()).drafters] == ["good"]
            pool.end()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with asyncio.timeout(PATIENCE):
                    while await watch.read() is not grpc.aio.EOF:
                        pass
            again = DrafterPoolServiceStub(channel).WatchDrafters(WatchDraftersRequest())  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.aio.AioRpcError):
                await again.read()
            return caught.value

    with FakeVerifier() as fake:
        error = asyncio.run(run(fake))
        assert fake.cancelled.wait(PATIENCE)
    assert error.code() is grpc.StatusCode.UNAVAILABLE
