"""How a drafter makes itself known to a verifier."""

import asyncio
from typing import Any

import grpc

from draftwire.v1 import drafter_pool_service_pb2
from service_runtime.process.logs import get_logger
from service_runtime.rpc.backoff import Backoff

log = get_logger(__name__)

_CALL_SECONDS = 5.0
"""Time a verifier has to answer a heartbeat."""
_LEAVE_SECONDS = 2.0
"""Time it has to answer the farewell, out of the grace time of the shutdown."""
_DEFAULT_INTERVAL = 5.0
"""Time between heartbeats where the verifier names none."""
_LEAST_INTERVAL = 0.05
_EARLY = 0.5
"""Part of the interval after which the next heartbeat leaves, so that it arrives within it."""


class Announcement:
    """Registers the drafter and keeps it registered by heartbeats; logs only when something changes."""

    def __init__(
        self, pool: Any, verifier: str, address: str, name: str | None, backoff: Backoff | None = None
    ) -> None:
        """`pool` is a DrafterPoolServiceStub of the verifier at `verifier`, `address` where it reaches this drafter."""
        self._pool = pool
        self._verifier = verifier
        self._address = address
        self._name = name
        self._backoff = backoff if backoff is not None else Backoff(0.2, 10.0)
        self._state: str | None = None

    async def run(self) -> None:
        """Registers, again and again, until cancelled."""
        while True:
            try:
                interval = await self._register(_CALL_SECONDS)
            except grpc.aio.AioRpcError as error:
                self._became(f"{error.code().name}: {error.details()}")
                await self._backoff.wait()
            else:
                self._became("")
                self._backoff.reset()
                await asyncio.sleep(max(interval, _LEAST_INTERVAL) * _EARLY)

    async def leave(self) -> None:
        """Tells the verifier to use this drafter no more; `run` must have ended. Raises nothing."""
        try:
            await self._register(_LEAVE_SECONDS, leaving=True)
        except grpc.aio.AioRpcError as error:  # it will notice by the missing heartbeats
            reason = f"{error.code().name}: {error.details()}"
            log.warning("could not tell the verifier of leaving", verifier=self._verifier, reason=reason)

    async def _register(self, timeout_seconds: float, *, leaving: bool = False) -> float:
        """One heartbeat; returns the time within which the verifier wants the next, in seconds."""
        request = drafter_pool_service_pb2.RegisterDrafterRequest(
            address=self._address, name=self._name or "", leaving=leaving
        )
        response = await self._pool.RegisterDrafter(request, timeout=timeout_seconds)
        if not response.HasField("heartbeat_interval"):
            return _DEFAULT_INTERVAL
        interval: float = response.heartbeat_interval.ToTimedelta().total_seconds()
        return interval

    def _became(self, state: str) -> None:
        """Logs that the verifier is reachable (empty state), or why not, unless that is known."""
        if state == self._state:
            return
        self._state = state
        if state:
            log.warning("not announced; trying again", verifier=self._verifier, reason=state)
        else:
            log.info("announced", verifier=self._verifier, address=self._address, name=self._name or self._address)
