"""One Draft stream to a drafter: handshake, writes, pings and end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from draftwire.v1.drafter_service_pb2 import DraftRequest, DraftResponse, Ping
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire_core.pool.drafter import draft_messages
from draftwire_core.pool.standing.flood_limit import FloodLimit
from draftwire_core.pool.standing.standings import DrafterClocks
from draftwire_core.runtime.rpc.handshake import check_peer, unprintable_field
from draftwire_core.runtime.rpc.message_stream import MessageStream, StreamBroken
from draftwire_core.runtime.rpc.stream_writer import OutboxFull, StreamWriter

DraftCall = MessageStream[DraftRequest, DraftResponse]

_HANDSHAKE_SECONDS = 5.0
_MAX_HELLO_BYTES = 65536
_MAX_CAPABILITIES = 64
"""Each step asks for some of them, whether or not the drafter is paused."""
_MAX_QUEUED = 4096
"""Maximum number of messages that wait for the drafter to read them."""
_PING_SECONDS = 1.0
_SILENT_PINGS = 3
"""Unanswered pings after which a drafter counts as lost. Time in which this process itself was stalled does not count,
since it sends no pings then."""


async def shake_hands(stream: DraftCall, identity: PeerInfo, address: str) -> PeerInfo:
    """Sends this side's hello, and returns that of the drafter at an address.

    Raises StreamBroken if no answer arrives in time, and ServiceError if the answer is not a hello or the two sides are
    incompatible.
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
    if len(first.hello.capabilities) > _MAX_CAPABILITIES:
        number = len(first.hello.capabilities)
        raise draft_messages.handshake_fault(f"{address} sent a handshake with {number} capabilities")
    unprintable = unprintable_field(first.hello)
    if unprintable is not None:
        raise draft_messages.handshake_fault(f"{address} sent a handshake whose {unprintable} is not printable")
    check_peer(identity, first.hello)
    return first.hello


class DrafterStream:
    """A stream after its handshake. Used in the event loop only."""

    def __init__(self, stream: DraftCall, drafter: str, flood_limit: FloodLimit, clocks: DrafterClocks) -> None:
        """drafter: the drafter's name, for the names of tasks. flood_limit: the limit on incoming messages."""
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
        """Writes, pings and reads until the drafter ends the stream, after `close` or by itself.

        read: reads until the stream ends. pings: whether the drafter answers pings. Raises the errors of `read`,
        StreamBroken if the drafter falls silent, OutboxFull if it does not read, and the exception passed to `end`.
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
                await reading  # after `close` the drafter ends its side
            reading.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.wait(parts)
            for part in parts:
                if not part.cancelled():
                    part.exception()  # retrieved: the first exception is raised, the others follow from it

    def send(self, message: DraftRequest, written: Callable[[], None] | None = None) -> None:
        """Queues a message. The stream ends if the drafter does not read. written: called when it has been written."""
        if self._writer.closed:
            return  # the stream has ended; its sequences are being dropped
        try:
            self._writer.send(message, written)
        except OutboxFull as error:
            self.end(OutboxFull(f"the drafter does not read its messages: {error}"))

    def close(self) -> None:
        """Stops sending, and lets the drafter end its side."""
        self._writer.close()

    def end(self, why: Exception) -> None:
        """Ends the stream with an exception; only the first one counts."""
        if not self._ended.done():
            self._ended.set_exception(why)

    def answered(self, number: int) -> float | None:
        """Handles the answer to a ping. Returns the seconds since that ping, or None if it was not the latest one."""
        self._silent_pings = 0
        last, sent = self._pinged
        return self._clocks.now() - sent if number == last else None

    async def _ping(self) -> None:
        """Sends pings. Raises StreamBroken when answers are missing."""
        for number in itertools.count(1):
            self._pinged = number, self._clocks.now()
            self.send(DraftRequest(ping=Ping(number=number)))
            self._flood_limit.asked()
            await asyncio.sleep(_PING_SECONDS)
            self._silent_pings += 1
            if self._silent_pings >= _SILENT_PINGS:
                seconds = _SILENT_PINGS * _PING_SECONDS
                raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"no sign of life for {seconds:g} seconds")
