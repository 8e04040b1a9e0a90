"""Request bodies, read whole and up to a size limit."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway_service.http.errors import GatewayError

_MOST_DISCARDED = 64 * 1024 * 1024
"""Most bytes read of a refused body: most clients read the response only after sending everything."""


class BodyLimit:
    """ASGI middleware that reads each body, within limits of size and time, before it is processed."""

    def __init__(self, app: ASGIApp, max_bytes: int, seconds: float) -> None:
        """app: the application to protect. max_bytes: largest body. seconds: time limit for reading it."""
        self._app = app
        self._max_bytes = max_bytes
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on with its whole body, or refuses it."""
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
            replay = _replay(body, receive)
            del body
            await self._app(scope, replay, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes | None:
        """Returns the body; None if the client left."""
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
        message = f"the body is larger than {self._max_bytes} bytes (--max-body-bytes)"
        return GatewayError(message, status=413, code="request_too_large")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Returns a receive function that gives the body once, then only the client's disconnect."""
    kept: list[bytes] = [body]  # not longer than needed: a request may take minutes

    async def replay() -> Message:
        if not kept:
            return await receive()
        return {"type": "http.request", "body": kept.pop(), "more_body": False}

    return replay
