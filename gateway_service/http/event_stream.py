"""Server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing

from pydantic import BaseModel
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from draftwire_core.runtime.process.logs import get_logger
from gateway_service.http.connection import ClientLeft, until_disconnect
from gateway_service.http.errors import GatewayError
from gateway_service.observability.metrics import Metrics

log = get_logger(__name__)

_LAST_WORDS_SECONDS = 2.0
"""Extra time for a request that has run out of time to report that."""
_SILENT_SECONDS = 20.0
"""Time without an event after which a stream begins with comments: many proxies end one that is silent for 60 seconds,
and some for 30, in which a slow machine has not read a long prompt."""
_COMMENT = b": waiting\n\n"
DONE = b"data: [DONE]\n\n"
_LINE_ENDS = [(letter.encode(), b"\\u%04x" % ord(letter)) for letter in "\x85\u2028\u2029"]
"""Characters that JSON may have as they are, and their escapes: many clients end a line at them, as httpx's does."""
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Response headers; the second one keeps nginx from buffering events."""


class NamedEvent(BaseModel):
    """An event that carries its type outside of its data as well."""

    type: str


def event(data: BaseModel) -> bytes:
    """Returns an event with the fields of `data` that are set."""
    name = b"event: %s\n" % data.type.encode() if isinstance(data, NamedEvent) else b""
    text = data.model_dump_json(exclude_unset=True).encode()
    for letter, escape in _LINE_ENDS:
        text = text.replace(letter, escape)
    return b"%sdata: %s\n\n" % (name, text)


class EventStream(StreamingResponse):
    """A response of events. A failure before the stream has begun is reported like that of any other response.

    However the response ends, the generator of the events is closed, which frees its resources. Each event is sent
    before the next is requested, and sending waits for a slow client. A client that does not read at all is dropped
    when the request's time is over.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        last_words: Callable[[GatewayError], Sequence[bytes]],
        seconds: float,
        metrics: Metrics,
        begin: Callable[[Response], None] = lambda _: None,
    ) -> None:
        """events: the events of the request; they raise GatewayError. last_words: the events that end a stream that has
        begun with an error. seconds: time limit of the request. begin: completes the headers when the stream begins."""
        super().__init__(events, media_type="text/event-stream", headers=_HEADERS)
        self._events = events
        self._last_words = last_words
        self._seconds = seconds + _LAST_WORDS_SECONDS
        self._metrics = metrics
        self._begin = begin
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends the events."""
        async with aclosing(self._events):
            try:
                async with asyncio.timeout(self._seconds):
                    await until_disconnect(receive, self._send(send))
            except (ClientLeft, TimeoutError):
                if not self._started:
                    raise
                self._metrics.disconnects.inc()

    async def _send(self, send: Send) -> None:
        try:
            each = await self._first(send)
            while each is not None:
                await self._write(send, each)
                each = await anext(self._events, None)
        except GatewayError as error:
            if not self._started:
                raise
            log.warning("stream failed", error=type(error.__cause__ or error).__name__, status=error.status)
            for each in self._last_words(error):
                await self._write(send, each)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _first(self, send: Send) -> bytes | None:
        """Returns the first event; None if there is none. Sends comments while it does not come."""
        coming = asyncio.ensure_future(anext(self._events, None))
        try:
            while not (await asyncio.wait({coming}, timeout=_SILENT_SECONDS))[0]:
                await self._write(send, _COMMENT)
            return coming.result()
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)

    async def _write(self, send: Send, data: bytes) -> None:
        if not self._started:
            self._started = True
            self._begin(self)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": data, "more_body": True})
