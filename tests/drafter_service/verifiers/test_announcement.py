"""A drafter that announces itself."""

import asyncio
import itertools
import random
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from structlog.testing import capture_logs

from drafter_service.verifiers import announcement as module
from drafter_service.verifiers.announcement import Announcement, VerifierPool
from draftwire._auth.security import Security
from draftwire._calls import channel
from draftwire._calls.channel import AsyncChannels
from draftwire.v1 import drafter_pool_service_pb2
from draftwire.v1.drafter_pool_service_pb2_grpc import add_DrafterPoolServiceServicer_to_server
from draftwire_core.runtime.rpc.channel import Backoff
from tests.harness.waiting import PATIENCE


class Pool:
    """Stands for the verifier's DrafterPoolServiceStub."""

    def __init__(self) -> None:
        self.requests: list[drafter_pool_service_pb2.RegisterDrafterRequest] = []
        self.failure: grpc.StatusCode | None = None
        self.interval: Duration | None = Duration(nanos=100_000_000)
        """None answers by bytes that are no message, which gRPC turns into None."""
        self._changed = asyncio.Condition()

    async def RegisterDrafter(self, request: Any, timeout: float) -> Any:
        assert timeout > 0
        async with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        if self.failure is not None:
            empty = grpc.aio.Metadata()
            raise grpc.aio.AioRpcError(self.failure, empty, empty, "not now")
        if self.interval is None:
            return None
        return drafter_pool_service_pb2.RegisterDrafterResponse(heartbeat_interval=self.interval)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10), self._changed:
            await self._changed.wait_for(condition)


def announcement(pool: Pool, name: str | None = None) -> Announcement:
    return Announcement(pool, "verifier:1", "drafter:1", name, Backoff(0.001, 0.01, random.Random(0)))


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_heartbeats_come_within_the_interval_and_are_logged_once() -> None:
    pool = Pool()
    started = asyncio.get_running_loop().time()
    with capture_logs() as logs:
        task = asyncio.create_task(announcement(pool, "quick").run())
        await pool.until(lambda: len(pool.requests) >= 4)
        await cancelled(task)
    assert asyncio.get_running_loop().time() - started >= 3 * 0.1 / 2
    assert {(each.address, each.name, each.leaving) for each in pool.requests} == {("drafter:1", "quick", False)}
    assert [line["event"] for line in logs] == ["drafter announced"]


@pytest.mark.parametrize("interval", [Duration(seconds=2**62), Duration(seconds=-(2**62)), Duration(nanos=-1), None])
async def test_an_interval_that_is_none_ends_nothing(
    interval: Duration | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LONGEST_INTERVAL", 0.1)
    pool = Pool()
    pool.interval = interval
    task = asyncio.create_task(announcement(pool).run())
    await pool.until(lambda: len(pool.requests) >= 2)
    await cancelled(task)


async def test_an_unreachable_verifier_is_tried_again_and_changes_are_logged() -> None:
    pool = Pool()
    pool.failure = grpc.StatusCode.UNAVAILABLE
    with capture_logs() as logs:
        task = asyncio.create_task(announcement(pool).run())
        await pool.until(lambda: len(pool.requests) >= 3)
        pool.failure = None
        seen = len(pool.requests)
        await pool.until(lambda: len(pool.requests) >= seen + 2)
        await cancelled(task)
    assert [line["event"] for line in logs] == ["announcement failed; it is tried again", "drafter announced"]
    assert "UNAVAILABLE" in logs[0]["reason"]


async def test_leaving_says_so_and_survives_a_lost_verifier() -> None:
    pool = Pool()
    await announcement(pool).leave()
    assert pool.requests[-1].leaving
    pool.failure = grpc.StatusCode.UNAVAILABLE
    with capture_logs() as logs:
        await announcement(pool).leave()
    assert logs[0]["event"] == "withdrawal failed"


class NameServer(asyncio.DatagramProtocol):
    """Knows no name at first, like that of a headless service of Kubernetes whose pod loads its model."""

    def __init__(self, unknown: int) -> None:
        """unknown: number of questions, IPv4's and IPv6's, until every name is 127.0.0.1."""
        self.unknown = unknown

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        self.unknown -= 1
        end = data.index(0, 12) + 5
        kind, answer = data[end - 4 : end - 2], b""
        if self.unknown < 0 and kind == b"\0\x01":
            answer = b"\xc0\x0c\0\x01\0\x01\0\0\0\0\0\x04" + socket.inet_aton("127.0.0.1")
        flags = b"\x81\x83" if self.unknown >= 0 else b"\x81\x80"
        counts = b"\0\x01" + bytes([0, bool(answer)]) + b"\0\0\0\0"
        self.transport.sendto(data[:2] + flags + counts + data[12:end] + answer, address)


async def test_a_verifier_whose_name_was_unknown_for_long_is_found_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    every_loss_counts = SimpleNamespace(monotonic=itertools.count(0, 10).__next__)
    monkeypatch.setattr(channel, "time", every_loss_counts)
    monkeypatch.setenv("no_grpc_proxy", "verifier.test")
    registered = asyncio.Event()

    class Servicer:
        async def RegisterDrafter(self, request: Any, context: Any) -> Any:
            registered.set()
            return drafter_pool_service_pb2.RegisterDrafterResponse()

        def __getattr__(self, name: str) -> Any:
            return None

    server = grpc.aio.server()
    add_DrafterPoolServiceServicer_to_server(Servicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    names, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: NameServer(unknown=30), local_addr=("127.0.0.1", 0)
    )
    channels = AsyncChannels(Security(insecure=True))
    verifier = f"dns://127.0.0.1:{names.get_extra_info('sockname')[1]}/verifier.test:{port}"
    backoff = Backoff(0.001, 0.01, random.Random(0))
    task = asyncio.create_task(
        Announcement(VerifierPool(channels, verifier), verifier, "drafter:1", None, backoff).run()
    )
    try:
        async with asyncio.timeout(PATIENCE):
            await registered.wait()
    finally:
        await cancelled(task)
        await channels.close()
        names.close()
        await server.stop(0)
