"""A grpc.health.v1 servicer that does not delay the server's stop."""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health, health_pb2

from draftwire_core.runtime.errors import shutting_down

if TYPE_CHECKING:
    import grpc

    _Context = grpc.aio.ServicerContext[Any, Any]

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
OVERALL = ""
"""Service name that stands for the whole server."""


class Health(health.aio.HealthServicer):
    """Reports the same health for a server and all its services.

    A Watch never ends by itself, so it would delay every graceful stop by the whole grace time. `end_watches` ends them
    with UNAVAILABLE, after which watchers reconnect elsewhere.
    """

    def __init__(self) -> None:
        super().__init__()
        self._services = [OVERALL]
        self._ended = asyncio.Event()

    def add(self, services: Iterable[str]) -> None:
        """Adds services, whose health is reported once it is set."""
        self._services.extend(services)

    async def set_serving(self, serving: bool) -> None:
        """Sets the health that checks and watches report; has no effect once the shutdown has begun."""
        for service in self._services:
            await self.set(service, SERVING if serving else NOT_SERVING)

    def end_watches(self) -> None:
        """Ends every Watch, present and future."""
        self._ended.set()

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: "_Context") -> None:
        """Streams the current health and every change."""
        watch = asyncio.ensure_future(super().Watch(request, context))
        ended = asyncio.ensure_future(self._ended.wait())
        try:
            await asyncio.wait({watch, ended}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done():
                watch.result()
            raise shutting_down()
        finally:
            watch.cancel()
            ended.cancel()
            await asyncio.wait({watch, ended})
