"""The service of the drafter pool inside vLLM, on the verifier's port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc

from draftwire._auth.security import ON_BEHALF_OF
from draftwire.v1 import drafter_pool_service_pb2 as pb
from draftwire.v1.drafter_pool_service_pb2_grpc import DrafterPoolServiceServicer, DrafterPoolServiceStub
from draftwire_core.runtime.errors import shutting_down
from draftwire_core.runtime.rpc.channel import client_options
from draftwire_core.runtime.rpc.interceptors import mark_routine

_MOST_ANNOUNCED = 1024
"""Drafters whose announcements are remembered."""
_PASSED_ON = ("authorization", ON_BEHALF_OF)
"""Metadata of calls that the pool reads, too."""


def pool_channel(address: str, max_message_bytes: int) -> grpc.aio.Channel:
    """Returns a channel to the pool's own port, at HOST:PORT on this machine: a proxy would look on its own."""
    options = [*client_options(max_message_bytes), ("grpc.enable_http_proxy", 0)]
    return grpc.aio.insecure_channel(address, options=options)


class ForwardedPool(DrafterPoolServiceServicer):
    """Passes each call on to the pool with its caller's token, and the pool's response or error back."""

    def __init__(self, pool: DrafterPoolServiceStub):
        """pool: of the pool's own port."""
        self._pool = pool
        self._watches: set[Any] = set()
        self._announced: set[tuple[str, str]] = set()
        """Names and addresses of drafters that have announced themselves and not left."""
        self._ending = False

    async def AttachDrafter(self, request: pb.AttachDrafterRequest, context: Any) -> Any:
        """Attaches a drafter."""
        if request.renewal:
            mark_routine()
        return await _passed(self._pool.AttachDrafter, request, context)

    async def DetachDrafter(self, request: pb.DetachDrafterRequest, context: Any) -> Any:
        """Detaches a drafter."""
        return await _passed(self._pool.DetachDrafter, request, context)

    async def SwapDrafter(self, request: pb.SwapDrafterRequest, context: Any) -> Any:
        """Moves a drafter's sequences to another drafter."""
        return await _passed(self._pool.SwapDrafter, request, context)

    async def StartRollout(self, request: pb.StartRolloutRequest, context: Any) -> Any:
        """Starts a rollout, or changes its share."""
        return await _passed(self._pool.StartRollout, request, context)

    async def FinishRollout(self, request: pb.FinishRolloutRequest, context: Any) -> Any:
        """Promotes or withdraws the new drafter of a rollout."""
        return await _passed(self._pool.FinishRollout, request, context)

    async def ListRollouts(self, request: pb.ListRolloutsRequest, context: Any) -> Any:
        """Lists the rollouts."""
        return await _passed(self._pool.ListRollouts, request, context)

    async def ListDrafters(self, request: pb.ListDraftersRequest, context: Any) -> Any:
        """Lists the drafters."""
        return await _passed(self._pool.ListDrafters, request, context)

    async def RegisterDrafter(self, request: pb.RegisterDrafterRequest, context: Any) -> Any:
        """Passes on a drafter's announcement: its arrival, a heartbeat, or its departure."""
        response = await _passed(self._pool.RegisterDrafter, request, context)
        drafter = request.name, request.address
        if request.leaving:
            self._announced.discard(drafter)
        elif drafter in self._announced:
            mark_routine()  # heartbeats would otherwise dominate the log
        elif len(self._announced) < _MOST_ANNOUNCED:
            self._announced.add(drafter)
        return response

    async def ReportLearning(self, request: pb.ReportLearningRequest, context: Any) -> Any:
        """Passes on a learner's state."""
        mark_routine()
        return await _passed(self._pool.ReportLearning, request, context)

    async def WatchDrafters(
        self, request: pb.WatchDraftersRequest, context: Any
    ) -> AsyncIterator[pb.WatchDraftersResponse]:
        """Streams the list of drafters, now and after each change."""
        if self._ending:
            raise shutting_down()
        watch = self._pool.WatchDrafters(request, metadata=_metadata(context), timeout=context.time_remaining())
        self._watches.add(watch)
        try:
            async for response in watch:
                yield response
        except grpc.aio.AioRpcError as error:
            await _abort(error, context)
        except asyncio.CancelledError:
            if self._ending:
                raise shutting_down() from None
            raise
        finally:
            self._watches.discard(watch)
            watch.cancel()

    def end(self) -> None:
        """Ends every stream of changes, present and future: an endless stream would delay a graceful stop."""
        self._ending = True
        for watch in list(self._watches):
            watch.cancel()


async def _passed(method: Any, request: Any, context: Any) -> Any:
    try:
        return await method(request, metadata=_metadata(context), timeout=context.time_remaining())
    except grpc.aio.AioRpcError as error:
        await _abort(error, context)


async def _abort(error: grpc.aio.AioRpcError, context: Any) -> None:
    """Ends a call as the pool has ended it, its details included."""
    await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))


def _metadata(context: Any) -> list[tuple[str, str]]:
    return [(key, value) for key, value in context.invocation_metadata() or () if key in _PASSED_ON]
