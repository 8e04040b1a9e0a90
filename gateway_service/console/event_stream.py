"""A response of server-sent events that lasts as long as its reader stays."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from draftwire import DraftwireError
from gateway_service.console.api_errors import describe_error, error_response
from gateway_service.http.connection import ClientLeft, until_disconnect

Event = tuple[str, dict[str, Any]]
"""Name and data of an event."""
Events = AsyncGenerator[Event, None]

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # otherwise nginx buffers events
]


class ConsoleEvents(Response):
    """Sends events as they arrive; when the connection closes, the events are closed.

    An error of the SDK before the first event sets the response's status; a later one is sent as the last event.
    """

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Sends events until they end or the reader leaves."""
        with suppress(ClientLeft):
            await until_disconnect(receive, self._send_all(scope, receive, send))

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False
        async with aclosing(self._events) as events:
            try:
                async for name, data in events:
                    if not begun:
                        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
                        begun = True
                    await _send_event(send, name, data)
            except DraftwireError as error:
                if not begun:
                    await error_response(error)(scope, receive, send)
                    return
                await _send_event(send, "error", describe_error(error))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_event(send: Send, name: str, data: dict[str, Any]) -> None:
    body = f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})
