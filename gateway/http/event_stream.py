"""Server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from pydantic import BaseModel
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gateway.http.disconnect import ClientLeft, until_disconnect
from gateway.observability.metrics import Metrics

_LAST_WORDS_SECONDS = 2.0
"""How long a request whose time is over has to say so."""
DONE = b"data: [DONE]\n\n"
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""The latter keeps nginx from collecting events."""


def event(data: BaseModel) -> bytes:
    """Return an event with the fields of `data` that are set."""
    return b"data: %s\n\n" % data.model_dump_json(exclude_unset=True).encode()


class EventStream(StreamingResponse):
    """A response of events. What fails before the first event is an error as of any other response.

    Whatever ends it closes the generator of the events, and with that frees what it holds. Each event is sent before
    the next is asked for, and sending waits where the client reads slowly: a client that does not read at all is given
    up when the request's time is over.
    """

    def __init__(self, events: AsyncGenerator[bytes, None], seconds: float, metrics: Metrics) -> None:
        """Take the events of a request that may take so many seconds."""
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._events = events
        self._seconds = seconds + _LAST_WORDS_SECONDS
        self._metrics = metrics
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them."""
        async with aclosing(self._events):
            try:
                async with asyncio.timeout(self._seconds):
                    await until_disconnect(receive, self._send(send))
            except (ClientLeft, TimeoutError):
                if not self._started:
                    raise
                self._metrics.disconnects.inc()

    async def _send(self, send: Send) -> None:
        async for each in self._events:
            if not self._started:
                self._started = True
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": each, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
