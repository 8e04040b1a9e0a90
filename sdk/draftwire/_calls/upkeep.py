"""Upkeep of a client's verifiers next to its calls: lookups of DNS names, and health checks of those that were lost.

A synchronous client does it in threads and gRPC's own callbacks, one for asyncio in tasks that its transport owns.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any

import grpc

from draftwire._calls.channel import AsyncChannels, Channels
from draftwire._calls.endpoints import Endpoints
from draftwire._calls.failover import remaining, says_that_it_serves
from draftwire._calls.names import resolve, resolve_async
from draftwire._messages.health import PROBE_SECONDS, Health, check_request, health_check, read_health
from draftwire.errors import DraftwireError, RequestCancelledError, from_rpc_error


class Upkeep:
    """Upkeep of the verifiers of a synchronous client. Safe to use from several threads."""

    def __init__(self, endpoints: Endpoints, channels: Channels) -> None:
        """Starts nothing."""
        self._endpoints = endpoints
        self._channels = channels
        self._looking_up = threading.Lock()

    def look_up(self, deadline: float | None) -> None:
        """Looks up DNS names, if that is due, until a deadline at most."""
        if self._endpoints.stale:
            with self._looking_up:
                if self._endpoints.stale:  # another thread may just have done it
                    self._resolve(deadline)

    def refresh(self) -> None:
        """Starts health checks of lost verifiers and new lookups of DNS names, where due."""
        if self._endpoints.old():
            threading.Thread(target=self._resolve, name="draftwire-names", daemon=True).start()
        for address in self._endpoints.due_probes():
            rpc = health_check(self._channels.get(address, self._endpoints.authority(address)))
            call = rpc.future(check_request(""), timeout=PROBE_SECONDS, metadata=self._channels.metadata())
            call.add_done_callback(partial(self._probed, address))

    def check(self, address: str, service: str) -> Any:
        """Makes a health check of a server's service. Raises grpc.RpcError."""
        rpc = health_check(self._channels.get(address, self._endpoints.authority(address)))
        return rpc(check_request(service), timeout=PROBE_SECONDS, metadata=self._channels.metadata())

    def close(self) -> None:
        """Closes the connections; health checks end with them."""
        self._channels.close()

    def _resolve(self, deadline: float | None = None) -> None:
        self._endpoints.update({name: resolve(name, remaining(deadline)) for name in self._endpoints.names})

    def _probed(self, address: str, call: Any) -> None:
        try:
            serves = read_health(call.result()) is not Health.NOT_SERVING
        except grpc.FutureCancelledError:  # the client was closed
            return
        except grpc.RpcError as error:
            serves = says_that_it_serves(from_rpc_error(error))
        if serves:
            self._endpoints.serves(address)


class AsyncUpkeep:
    """Upkeep of the verifiers of an asyncio client, on one event loop."""

    def __init__(self, endpoints: Endpoints, channels: AsyncChannels) -> None:
        """Starts nothing, so that no event loop is needed yet."""
        self._endpoints = endpoints
        self._channels = channels
        self._looking_up = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def look_up(self, deadline: float | None) -> None:
        """Looks up DNS names, if that is due, until a deadline at most."""
        if self._endpoints.stale:
            async with self._looking_up:
                if self._endpoints.stale:  # another task may just have done it
                    await self._resolve(deadline)

    def refresh(self) -> None:
        """Starts health checks of lost verifiers and new lookups of DNS names, where due."""
        if self._endpoints.old():
            self._begin(self._resolve())
        for address in self._endpoints.due_probes():
            self._begin(self._probe(address))

    async def check(self, address: str, service: str) -> Any:
        """Makes a health check of a server's service. Raises grpc.RpcError and, as grpc does, CancelledError."""
        rpc = health_check(self._channels.get(address, self._endpoints.authority(address)))
        return await rpc(check_request(service), timeout=PROBE_SECONDS, metadata=self._channels.metadata())

    async def close(self) -> None:
        """Closes the connections, and ends the tasks."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await self._channels.close()
        if tasks:
            await asyncio.wait(tasks)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _resolve(self, deadline: float | None = None) -> None:
        self._endpoints.update({name: await resolve_async(name, remaining(deadline)) for name in self._endpoints.names})

    async def _probe(self, address: str) -> None:
        try:
            serves = read_health(await self.check(address, "")) is not Health.NOT_SERVING
        except (grpc.RpcError, asyncio.CancelledError) as error:
            serves = says_that_it_serves(failure_of(error))
        if serves:
            self._endpoints.serves(address)


def failure_of(error: grpc.RpcError | asyncio.CancelledError) -> DraftwireError:
    """Returns the typed error for what a call of grpc.aio raised; re-raises the ``CancelledError`` of a cancelled task.

    grpc.aio reports a cancelled call, whichever side cancelled it, as if the task had been cancelled.
    """
    if isinstance(error, grpc.RpcError):
        return from_rpc_error(error)
    task = asyncio.current_task()
    if task is None or task.cancelling():
        raise error
    return RequestCancelledError("the call was cancelled by the service")
