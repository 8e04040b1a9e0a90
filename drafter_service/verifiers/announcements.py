"""The announcements of a drafter to all its verifiers."""

import asyncio
from collections.abc import Sequence
from typing import Any

from drafter_service.verifiers.announcement import Announcement
from draftwire._calls.channel import AsyncChannels
from draftwire.v1.drafter_pool_service_pb2 import RegisterDrafterRequest
from draftwire.v1.drafter_pool_service_pb2_grpc import DrafterPoolServiceStub
from draftwire_core.runtime.process.tasks import BackgroundTasks


class VerifierPool:
    """A DrafterPoolServiceStub that adds this drafter's token. Each call uses the current channel, which changes with
    the certificate."""

    def __init__(self, channels: AsyncChannels, address: str) -> None:
        """address: HOST:PORT of the verifier."""
        self._channels = channels
        self._address = address

    def RegisterDrafter(self, request: RegisterDrafterRequest, timeout: float) -> Any:
        """Starts the call; awaiting it returns the response or raises grpc.aio.AioRpcError. timeout: in seconds."""
        stub: Any = DrafterPoolServiceStub(self._channels.get(self._address))
        return stub.RegisterDrafter(request, timeout=timeout, metadata=self._channels.metadata())


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
