"""The connection of an HTTP client: strict framing, time limits, and the end of work whose client left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, TypeVar

import h11
from starlette.types import Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway_service.http.errors import GatewayError

IDLE_SECONDS = 125
"""Time that uvicorn keeps a connection between two requests. Proxies keep theirs for 60 to 120 seconds, and send the
next request into one that is ending if this is less."""
_MOST_CHUNKS, _LEAST_CHUNK = 4096, 16
"""A body of more chunks than this must have so many bytes a chunk, on average. A chunk takes the event loop some 10 us,
and one read may have 40,000 of a byte."""


class StrictFraming(h11.Connection):
    """An h11 connection that refuses a request that another server might read as two, and a body of tiny chunks.

    RFC 9112, 6.3, allows `transfer-encoding` to override `content-length` but requires the connection to be closed
    afterwards. h11 itself keeps it open.
    """

    fault = ""
    """Description of the fault in the refused request."""
    _chunks = _chunk_bytes = 0
    """Chunks of the current body, and their bytes."""

    def next_event(self) -> Any:
        """Returns the next event.

        Raises:
            h11.RemoteProtocolError: the client does not speak HTTP, or not unambiguously.
        """
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_framing(event)
                self._chunks = self._chunk_bytes = 0
            elif isinstance(event, h11.Data):
                self._count(event)
        except h11.RemoteProtocolError as error:
            self.fault = str(error)
            raise
        return event

    def _count(self, data: h11.Data) -> None:
        """Refuses a body once its chunks are many and tiny."""
        self._chunks += data.chunk_end
        self._chunk_bytes += len(data.data)
        if self._chunks > _MOST_CHUNKS and self._chunk_bytes < _LEAST_CHUNK * self._chunks:
            raise h11.RemoteProtocolError(f"more than {_MOST_CHUNKS} chunks, of less than {_LEAST_CHUNK} bytes each")


class HttpConnection(H11Protocol):
    """uvicorn's connection, with limits on the number of connections and on the time without a request. uvicorn closes
    connections that are idle between two requests. But it waits forever for the first request, for the rest of a
    request's head, and for a client that does not read the end of a response."""

    max_connections = 1024
    """Most connections at once; a further one takes the place of the one idle for longest, or is closed on arrival.
    `bounded` sets it."""
    head_seconds = 10.0
    """Time from the connection, or from the next request's first byte, to the end of the request's head."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Replaces uvicorn's h11 connection by a strict one."""
        super().__init__(*arguments, **options)
        size = self.config.h11_max_incomplete_event_size
        self.conn: StrictFraming = StrictFraming(
            h11.SERVER, **({} if size is None else {"max_incomplete_event_size": size})
        )
        self._idle_since: float | None = None
        """When the last response was complete, until the next request begins."""
        self._head_late: asyncio.TimerHandle | None = None
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Starts waiting for a request, unless there are too many connections."""
        if len(self.connections) >= self.max_connections and not self._make_room():
            transport.abort()
            return
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Takes a part of a request."""
        if self._idle_since is not None:
            self._idle_since = None
            self._stop_waiting()
        super().data_received(data)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops waiting."""
        if self in self.connections:  # otherwise it was turned away
            super().connection_lost(exc)
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """Starts waiting for the next request."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]:
            self._idle_since = self.loop.time()
        self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """Refuses an invalid request and closes the connection, because the start of the next request is unknown."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # a response is being sent, or has been sent
            self.transport.close()
            return
        error = GatewayError(f"not a valid HTTP request: {self.conn.fault or msg}", code="invalid_http")
        length = str(len(error.body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=error.status, headers=headers, reason=HTTPStatus(error.status).phrase.encode()),
            h11.Data(data=error.body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _make_room(self) -> bool:
        """Ends the connection that is idle for longest; returns whether there is one."""
        ours = [each for each in self.connections if isinstance(each, HttpConnection)]
        idle = [each for each in ours if each._idle_since is not None and not each.transport.is_closing()]
        if not idle:
            return False
        min(idle, key=lambda each: each._idle_since or 0.0).transport.abort()
        return True

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        """Runs the timer while no request is being answered, and only then."""
        if self._answering and not self.transport.is_closing():
            self._stop_waiting()
        elif self._head_late is None:
            self._look_again()

    def _look_again(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._head_late = self.loop.call_later(self.head_seconds, self._too_late)

    def _too_late(self) -> None:
        """Aborts the connection, unless the client has read more of the last response in the meantime, or all of it and
        sent nothing since."""
        unread = self.transport.get_write_buffer_size()
        if 0 < unread < self._unread:
            self._look_again()
        elif not unread and self._idle_since is not None:
            self._head_late = None  # uvicorn ends it
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._head_late is not None:
            self._head_late.cancel()
            self._head_late = None


def _check_framing(request: h11.Request) -> None:
    """Refuses a body whose end is given twice, or in a way that HTTP/1.0 does not know."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise h11.RemoteProtocolError("both content-length and transfer-encoding")
    if request.http_version < b"1.1":
        raise h11.RemoteProtocolError("transfer-encoding in HTTP/1.0")


def bounded(max_connections: int) -> type[HttpConnection]:
    """Returns the connection class of a server that allows at most `max_connections`."""
    return type("BoundedHttpConnection", (HttpConnection,), {"max_connections": max_connections})


T = TypeVar("T")


class ClientLeft(Exception):
    """The client closed its connection before the response was complete."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`; cancels it when the client leaves.

    Raises:
        ClientLeft: the client left.
    """
    working, leaving = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientLeft
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
