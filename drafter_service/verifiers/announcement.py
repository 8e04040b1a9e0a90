"""Announcements of the drafter to its verifiers."""

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc

from draftwire._calls.channel import AsyncChannels
from draftwire.v1 import drafter_pool_service_pb2
from draftwire.v1.drafter_pool_service_pb2 import RegisterDrafterRequest
from draftwire.v1.drafter_pool_service_pb2_grpc import DrafterPoolServiceStub
from draftwire_core.runtime.duration import seconds_of
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.tasks import BackgroundTasks
from draftwire_core.runtime.rpc.channel import Backoff

log = get_logger(__name__)

_CALL_SECONDS = 5.0
"""Time that a verifier has to answer a heartbeat."""
_LEAVE_SECONDS = 2.0
"""Time that a verifier has to answer the notice of leaving; part of the shutdown's grace period."""
_DEFAULT_INTERVAL = 5.0
"""Heartbeat interval if the verifier names none."""
_LEAST_INTERVAL, _LONGEST_INTERVAL = 0.05, 60.0
_EARLY = 0.5
"""Fraction of the interval after which the next heartbeat is sent, so that it arrives in time."""


class Announcement:
    """Registers the drafter and keeps it registered by heartbeats. Logs only changes."""

    def __init__(
        self, pool: Any, verifier: str, address: str, name: str | None, backoff: Backoff | None = None
    ) -> None:
        """pool: a DrafterPoolServiceStub of the verifier. verifier: the verifier's address. address: the address at
        which the verifier reaches this drafter."""
        self._pool = pool
        self._verifier = verifier
        self._address = address
        self._name = name
        self._backoff = backoff if backoff is not None else Backoff(0.2, 10.0)
        self._state: str | None = None

    async def run(self) -> None:
        """Sends heartbeats until cancelled."""
        while True:
            try:
                interval = await self._register(_CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                self._became(f"{error.code().name}: {error.details()}")
                await self._backoff.wait()
            else:
                self._became("")
                self._backoff.reset()
                await asyncio.sleep(min(max(interval, _LEAST_INTERVAL), _LONGEST_INTERVAL) * _EARLY)

    async def leave(self) -> None:
        """Notifies the verifier that this drafter leaves; `run` must have ended. Raises nothing."""
        try:
            await self._register(_LEAVE_SECONDS, leaving=True)
        except grpc.aio.AioRpcError as error:  # the verifier will notice the missing heartbeats
            reason = f"{error.code().name}: {error.details()}"
            log.warning("withdrawal failed", verifier=self._verifier, reason=reason)

    async def _register(self, timeout_seconds: float, *, leaving: bool = False) -> float:
        """Sends one heartbeat. Returns the seconds within which the verifier expects the next."""
        request = drafter_pool_service_pb2.RegisterDrafterRequest(
            address=self._address, name=self._name or "", leaving=leaving
        )
        response = await self._pool.RegisterDrafter(request, timeout=timeout_seconds)
        if response is None or not response.HasField("heartbeat_interval"):  # gRPC turns undecodable bytes into None
            return _DEFAULT_INTERVAL
        return seconds_of(response.heartbeat_interval)

    def _became(self, state: str) -> None:
        """Logs that the verifier is reachable (empty state), or the reason that it is not, if that has changed."""
        if state == self._state:
            return
        self._state = state
        if state:
            log.warning("announcement failed; it is tried again", verifier=self._verifier, reason=state)
        else:
            log.info(
                "drafter announced", verifier=self._verifier, address=self._address, name=self._name or self._address
            )


class VerifierPool:
    """A DrafterPoolServiceStub that adds this drafter's token. Each call uses the current channel, which changes with
    the certificate."""

    def __init__(self, channels: AsyncChannels, address: str) -> None:
        """address: HOST:PORT of the verifier."""
        self._channels = channels
        self._address = address

    async def RegisterDrafter(self, request: RegisterDrafterRequest, timeout: float) -> Any:  # noqa: ASYNC109
        """Makes the call and returns the response. timeout: in seconds. Raises grpc.aio.AioRpcError."""
        stub: Any = DrafterPoolServiceStub(self._channels.get(self._address))
        try:
            return await stub.RegisterDrafter(request, timeout=timeout, metadata=self._channels.metadata())
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                self._channels.lost(self._address)
            raise


class Announcements:
    """Independent announcements to all verifiers, so that an unreachable one does not delay the others."""

    def __init__(
        self, channels: AsyncChannels, verifiers: Sequence[str], name: str | None, tasks: BackgroundTasks
    ) -> None:
        """verifiers: the verifiers' addresses, HOST:PORT. tasks: owns the heartbeat tasks."""
        self._channels = channels
        self._verifiers = tuple(verifiers)
        self._name = name
        self._tasks = tasks
        self._running: dict[Announcement, asyncio.Task[None]] = {}

    def begin(self, address: str) -> None:
        """Starts announcing the drafter at `address`, HOST:PORT, until `end`."""
        for verifier in self._verifiers:
            announcement = Announcement(VerifierPool(self._channels, verifier), verifier, address, self._name)
            self._running[announcement] = self._tasks.spawn(announcement.run(), name=f"announcement to {verifier}")

    async def end(self) -> None:
        """Ends the heartbeats and notifies all verifiers in parallel that the drafter leaves. Raises nothing."""
        announcements, tasks = list(self._running), list(self._running.values())
        self._running.clear()
        if not announcements:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.gather(*(announcement.leave() for announcement in announcements))
