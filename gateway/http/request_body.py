"""Bodies of requests, whole and of a bounded size."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.http.errors import GatewayError

_MOST_DISCARDED = 64 * 1024 * 1024
"""Of a body that is refused so many bytes are read: most clients look for the answer only when they have sent all."""


class BodyLimit:
    """ASGI middleware: reads each body, up to a size and in a time, before it is looked at."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        """Stand before `app`."""
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its whole body, or refuse it."""
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(Headers(scope=scope), receive)
        except GatewayError as error:
            await error.response()(scope, receive, send)
            return
        except TimeoutError:
            late = GatewayError("the body did not arrive in time", status=408, code="timeout")
            await late.response()(scope, receive, send)
            return
        if body is not None:
            await self._app(scope, _replay(body, receive), send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """The body, None where the client went away."""
        size = 0
        declared = headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > max(_MOST_DISCARDED, self._max_bytes):
            raise self._too_large()
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part: bytes = message.get("body", b"")
            size += len(part)
            if size <= self._max_bytes:
                body += part
            elif size > max(_MOST_DISCARDED, self._max_bytes):
                raise self._too_large()
            if not message.get("more_body", False):
                break
        if size > self._max_bytes:
            raise self._too_large()
        return bytes(body)

    def _too_large(self) -> GatewayError:
        message = f"the body is larger than {self._max_bytes} bytes"
        return GatewayError(message, status=413, code="request_too_large")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body once; what comes after it is the client's leaving."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
