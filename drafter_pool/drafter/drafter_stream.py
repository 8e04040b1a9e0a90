"""One Draft stream to a drafter: its handshake, what is written to it, its pings, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Coroutine
from typing import Any

import grpc

from drafter_pool.drafter import draft_messages
from drafter_pool.drafter.clocks import DrafterClocks
from drafter_pool.drafter.flood_limit import FloodLimit
from draftwire.v1.drafter_service_pb2 import DraftRequest, DraftResponse, Ping
from draftwire.v1.model_info_pb2 import PeerInfo
from service_runtime.rpc.handshake import check_peer, unprintable_field
from service_runtime.rpc.message_stream import MessageStream, StreamBroken
from service_runtime.rpc.stream_writer import OutboxFull, StreamWriter

DraftCall = MessageStream[DraftRequest, DraftResponse]

_HANDSHAKE_SECONDS = 5.0
_MAX_HELLO_BYTES = 65536
_MAX_QUEUED = 4096
"""Messages that may wait for the drafter to read."""
_PING_SECONDS = 1.0
_SILENT_PINGS = 3
"""Pings after the last sign of life at which a drafter is lost. Time in which this process itself stood still does not
count, since no ping is sent in it."""


async def shake_hands(stream: DraftCall, identity: PeerInfo, address: str) -> PeerInfo:
    """Send this side's hello, and return that of the drafter at an address.

    Raises StreamBroken if none comes in time, and ServiceError if something else comes or the two sides do not fit.
    """
    try:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await stream.write(DraftRequest(hello=identity))
            first = await stream.read()
    except TimeoutError as error:
        raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"no handshake within {_HANDSHAKE_SECONDS} s") from error
    if first is None:
        raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"{address} ended the stream before its handshake")
    if first.WhichOneof("message") != "hello":
        raise draft_messages.handshake_fault(f"{address} did not begin with its handshake")
    if first.hello.ByteSize() > _MAX_HELLO_BYTES:
        raise draft_messages.handshake_fault(f"{address} sent a handshake of {first.hello.ByteSize()} bytes")
    unprintable = unprintable_field(first.hello)
    if unprintable is not None:
        raise draft_messages.handshake_fault(f"{address} sent a handshake whose {unprintable} is not printable")
    check_peer(identity, first.hello)
    return first.hello


class DrafterStream:
    """A stream after its handshakes. Used in the event loop only."""

    def __init__(self, stream: DraftCall, drafter: str, flood_limit: FloodLimit, clocks: DrafterClocks) -> None:
        """drafter: its name, for the tasks' names. flood_limit: of what comes back on the stream."""
        self._drafter = drafter
        self._flood_limit = flood_limit
        self._clocks = clocks
        self._writer: StreamWriter[DraftRequest] = StreamWriter(stream, _MAX_QUEUED)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._silent_pings = 0
        self._pinged: tuple[int, float] = (0, 0.0)
        """The last ping's number, and the time at which it was sent."""

    @property
    def writable(self) -> bool:
        """Whether messages still reach the drafter."""
        return not self._writer.closed

    async def run(self, read: Coroutine[Any, Any, None], *, pings: bool) -> None:
        """Write, ping and read until the drafter ends the stream, after `close` or by itself.

        read: reads until then. pings: whether the drafter answers pings. Raises what `read` raises, StreamBroken when
        the drafter falls silent, OutboxFull when it does not read, and the exception that `end` was given.
        """
        reading = asyncio.create_task(read, name=f"read from {self._drafter}")
        writing = asyncio.create_task(self._writer.run(), name=f"write to {self._drafter}")
        parts: set[asyncio.Future[None]] = {reading, writing, self._ended}
        if pings:
            parts.add(asyncio.create_task(self._ping(), name=f"watch over {self._drafter}"))
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if reading not in done:
                for part in done:
                    part.result()
                await reading  # released: the drafter answers by ending its side
            reading.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.wait(parts)
            for part in parts:
                if not part.cancelled():
                    part.exception()  # seen: whichever came first is raised, the others follow from it

    def send(self, message: DraftRequest) -> None:
        """Queue a message. A drafter that does not read loses the stream."""
        if self._writer.closed:
            return  # the stream is over; its sequences are being dropped
        try:
            self._writer.send(message)
        except OutboxFull as error:
            self.end(OutboxFull(f"the drafter does not read: {error}"))

    def close(self) -> None:
        """Send nothing more, and let the drafter end its side."""
        self._writer.close()

    def end(self, why: Exception) -> None:
        """End the stream for a reason, unless it has one already."""
        if not self._ended.done():
            self._ended.set_exception(why)

    def answered(self, number: int) -> float | None:
        """Take the answer to a ping. Returns the seconds since that ping, None unless it is the last one."""
        self._silent_pings = 0
        last, sent = self._pinged
        return self._clocks.now() - sent if number == last else None

    async def _ping(self) -> None:
        """Raises StreamBroken when the answers stay out."""
        for number in itertools.count(1):
            self._pinged = number, self._clocks.now()
            self.send(DraftRequest(ping=Ping(number=number)))
            self._flood_limit.asked()
            await asyncio.sleep(_PING_SECONDS)
            self._silent_pings += 1
            if self._silent_pings >= _SILENT_PINGS:
                seconds = _SILENT_PINGS * _PING_SECONDS
                raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"no sign of life for {seconds:g} seconds")
