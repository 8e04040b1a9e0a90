"""One connection of an HTTP client, which has to say what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


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


def bounded(max_connections: int) -> type[HttpConnection]:
    """The connections of a server that has so many at most."""
    return type("BoundedHttpConnection", (HttpConnection,), {"max_connections": max_connections})
