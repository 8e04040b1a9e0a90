"""Calls of the asyncio edge client, the counterpart of ``transport`` on grpc.aio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import grpc.aio
from google.protobuf.message import Message

from draftwire._calls.async_transport import AsyncTransport
from draftwire._calls.call_span import Metadata
from draftwire._calls.failover import remaining
from draftwire._messages.methods import VERIFY, Method
from draftwire._types.verifier import Verifier
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.edge.edge_request import EdgeRequest, EncodedStart, encoded
from draftwire_core.edge.local_drafter import LocalDrafter
from draftwire_core.edge.transport import wants_drafts


class AsyncEdgeTransport(AsyncTransport):
    """Makes calls to the verifiers of a client, and drafts for generation calls."""

    def __init__(self, drafter: LocalDrafter, verifiers: tuple[Verifier, ...], **options: Any) -> None:
        """Creates a transport without a connection. ``options`` are those of ``AsyncTransport``."""
        super().__init__(verifiers, **options)
        self._drafter = drafter
        self._reading: set[asyncio.Task[None]] = set()

    def encoded(self, request: Message | partial[Any]) -> Any:
        """Returns a request as ``open`` takes it: as the start of a Verify stream if it wants drafts."""
        if isinstance(request, pb.GenerateRequest) and wants_drafts(request, self._drafter):
            return EncodedStart.of(request, self._drafter)
        return super().encoded(request)

    def open(
        self,
        method: Method[Any, Any],
        request: Any,
        address: str,
        deadline: float | None,
        metadata: Metadata = (),
    ) -> Any:
        """Starts one attempt of a streaming call; returns grpc's call, or an object with the same methods."""
        if not isinstance(request, EncodedStart):
            return super().open(method, request, address, deadline, metadata)
        rpc = self._channels.get(address, self._endpoints.authority(address)).stream_stream(
            VERIFY.path,
            request_serializer=encoded,
            response_deserializer=VERIFY.response.FromString,
        )
        metadata = (*self._channels.metadata(), *metadata)
        call = AsyncEdgeCall(
            lambda requests: rpc(requests, timeout=remaining(deadline), metadata=metadata), request, self._drafter
        )
        reading = asyncio.create_task(call.run(), name="draftwire-edge-call")
        self._reading.add(reading)
        reading.add_done_callback(self._reading.discard)
        return call

    async def close(self) -> None:
        """Cancels running calls and closes the connections."""
        await super().close()
        while self._reading:
            await asyncio.wait(tuple(self._reading))


class AsyncEdgeCall:
    """One Verify call behind the interface that ``AsyncStream`` needs of a Generate call.

    A task reads the stream, so that drafting does not stall if the caller reads its chunks slowly. The request's own
    tokens bound what is buffered for the caller.
    """

    def __init__(
        self,
        start: Callable[[AsyncIterator[pb.VerifyRequest | EncodedStart]], Any],
        first: EncodedStart,
        drafter: LocalDrafter,
    ) -> None:
        """Starts the call; ``run`` must run as a task."""
        self._loop = asyncio.get_running_loop()
        self._outbox: asyncio.Queue[pb.VerifyRequest | EncodedStart | None] = asyncio.Queue()
        self._inbox: asyncio.Queue[pb.GenerateResponse | BaseException | None] = asyncio.Queue()
        self._drafted = EdgeRequest(drafter, self._send)
        self._outbox.put_nowait(first)
        self._call = start(self._requests())

    async def read(self) -> Any:
        """Returns the next event, or grpc's EOF. Raises grpc.RpcError and, as grpc does, CancelledError."""
        item = await self._inbox.get()
        if isinstance(item, pb.GenerateResponse):
            return item
        self._inbox.put_nowait(item)  # later reads end the same way
        if item is None:
            return grpc.aio.EOF
        raise item

    async def initial_metadata(self) -> Any:
        """Returns the call's initial metadata. Waits for it, or for the end of the call."""
        return await self._call.initial_metadata()

    def cancel(self) -> None:
        """Cancels the call, if it still runs."""
        self._call.cancel()

    async def run(self) -> None:
        """Reads the stream to its end."""
        end: BaseException | None = None
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                event = self._drafted.take(message)
                if event is not None:
                    self._inbox.put_nowait(event)
        except asyncio.CancelledError as error:
            end = error
            if not self._call.cancelled():  # this task was cancelled, not only the call
                self._call.cancel()
                raise
        except Exception as error:  # noqa: BLE001 - raised again where the events are taken
            end = error
            self._call.cancel()
        finally:
            self._drafted.close()
            self._outbox.put_nowait(None)
            self._inbox.put_nowait(end)

    async def _requests(self) -> AsyncIterator[pb.VerifyRequest | EncodedStart]:
        while (message := await self._outbox.get()) is not None:
            yield message

    def _send(self, message: pb.VerifyRequest) -> None:
        """Sends from the drafter's thread."""
        try:
            self._loop.call_soon_threadsafe(self._outbox.put_nowait, message)
        except RuntimeError:
            self._drafted.close()  # the loop has been closed, and the call with it
