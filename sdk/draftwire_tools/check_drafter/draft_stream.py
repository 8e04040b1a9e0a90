"""One Draft stream to the drafter under test, as gRPC gives it."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from draftwire._auth.security import Metadata
from draftwire._messages.methods import DRAFT
from draftwire.errors import from_rpc_error
from draftwire.v1 import drafter_service_pb2 as drafter


class StreamEnded(Exception):
    """The drafter has ended the stream."""

    def __init__(self, code: grpc.StatusCode, reason: str, message: str) -> None:
        """code: OK for a clean end. reason: the published reason; empty without one."""
        super().__init__(f"the drafter ended the stream: {' '.join(filter(None, (code.name, reason, message)))}")
        self.code = code
        self.reason = reason
        # When a call ends while a message is being written, gRPC may give its own error in place of the call's status.
        self.unclear = (code, message) == (grpc.StatusCode.INTERNAL, "Internal error from Core")
        """Whether the status may not be the drafter's."""


class DraftStream:
    """Writes requests, and reads responses in a task of its own, since a read that is given up would end the call."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        """Begins the call."""
        method: Any = channel.stream_stream(
            DRAFT.path,
            request_serializer=drafter.DraftRequest.SerializeToString,
            response_deserializer=drafter.DraftResponse.FromString,
        )
        self._call = method(metadata=metadata)
        self._read: asyncio.Queue[drafter.DraftResponse | StreamEnded] = asyncio.Queue()
        self._end: StreamEnded | None = None
        self._reading = asyncio.create_task(self._pump(), name="check-drafter-reader")

    async def write(self, message: drafter.DraftRequest) -> None:
        """Sends a message. One for which the drafter has ended the stream is dropped: reading reports the end."""
        try:
            await self._call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            await asyncio.wait({self._reading})

    async def read(self, seconds: float) -> drafter.DraftResponse:
        """Returns the next message.

        Raises:
            TimeoutError: there is none for this long.
            StreamEnded: the drafter has ended the stream.
        """
        if self._end is not None:
            raise self._end
        async with asyncio.timeout(seconds):
            found = await self._read.get()
        if isinstance(found, StreamEnded):
            self._end = found
            raise found
        return found

    async def done_writing(self) -> None:
        """Ends this side of the stream."""
        await self._call.done_writing()

    async def close(self) -> None:
        """Cancels the call."""
        self._call.cancel()
        await asyncio.wait({self._reading})

    async def _pump(self) -> None:
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                self._read.put_nowait(message)
        except grpc.RpcError as caught:
            error = from_rpc_error(caught)
            self._read.put_nowait(StreamEnded(error.code, str(error.reason or ""), error.details))
        except asyncio.CancelledError:  # `close` has cancelled the call
            self._read.put_nowait(StreamEnded(grpc.StatusCode.CANCELLED, "", "by this side"))
        else:
            self._read.put_nowait(StreamEnded(grpc.StatusCode.OK, "", ""))
