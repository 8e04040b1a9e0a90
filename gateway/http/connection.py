"""One connection of an HTTP client, which has to say what it wants."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gateway.http.errors import GatewayError


class StrictFraming(h11.Connection):
    """h11's connection, which refuses a request that another server might take for two. h11 itself lets
    `transfer-encoding` win over `content-length`, as it may, and keeps the connection, as it may not: RFC 9112, 6.3.
    """

    fault = ""
    """What is wrong with the request that was refused."""

    def next_event(self) -> Any:
        """Return the next event.

        Raises:
            h11.RemoteProtocolError: the client does not speak HTTP, or not clearly.
        """
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check_framing(event)
        except h11.RemoteProtocolError as error:
            self.fault = str(error)
            raise
        return event


class HttpConnection(H11Protocol):
    """uvicorn's, with bounds of its own: how many there are, and the time without a request. uvicorn closes one
    between two requests, but waits for the first request, for the rest of one's head, and for a client that does not
    read the end of a response, for ever.
    """

    max_connections = 1024
    """Connections at once; more are closed as they come. `bounded` sets it."""
    head_seconds = 10.0
    """Time from the connection, or from the end of a response, to the end of the next request's head."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See H11Protocol."""
        super().__init__(*arguments, **options)
        size = self.config.h11_max_incomplete_event_size
        self.conn: StrictFraming = StrictFraming(
            h11.SERVER, **({} if size is None else {"max_incomplete_event_size": size})
        )
        self._head_late: asyncio.TimerHandle | None = None
        self._unread = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to wait for a request, unless there are too many connections."""
        if len(self.connections) >= self.max_connections:
            transport.abort()
            return
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more."""
        if self in self.connections:  # else it was turned away
            super().connection_lost(exc)
        self._stop_waiting()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        self._wait_for_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request, and close the connection: where the next one begins is unknown."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # an answer is under way, or has been given
            self.transport.close()
            return
        error = GatewayError(f"no valid HTTP request: {self.conn.fault or msg}", code="invalid_http")
        length = str(len(error.body)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length), (b"connection", b"close")]
        for event in (
            h11.Response(status_code=error.status, headers=headers, reason=HTTPStatus(error.status).phrase.encode()),
            h11.Data(data=error.body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        """Have the time run while no request is being answered, and only then."""
        if self._answering and not self.transport.is_closing():
            self._stop_waiting()
        elif self._head_late is None:
            self._look_again()

    def _look_again(self) -> None:
        self._unread = self.transport.get_write_buffer_size()
        self._head_late = self.loop.call_later(self.head_seconds, self._too_late)

    def _too_late(self) -> None:
        """The time is over: enough, unless the client has read more of the last response."""
        if 0 < self.transport.get_write_buffer_size() < self._unread:
            self._look_again()
        else:
            self.transport.abort()

    def _stop_waiting(self) -> None:
        if self._head_late is not None:
            self._head_late.cancel()
            self._head_late = None


def _check_framing(request: h11.Request) -> None:
    """Refuse a body whose end is told twice, or by what HTTP/1.0 does not know."""
    names = {name for name, _ in request.headers}
    if b"transfer-encoding" not in names:
        return
    if b"content-length" in names:
        raise h11.RemoteProtocolError("content-length beside transfer-encoding")
    if request.http_version < b"1.1":
        raise h11.RemoteProtocolError("transfer-encoding in HTTP/1.0")


def bounded(max_connections: int) -> type[HttpConnection]:
    """The connections of a server that has so many at most."""
    return type("BoundedHttpConnection", (HttpConnection,), {"max_connections": max_connections})
