"""Serves the console over real HTTP from a thread of this process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwire import AsyncClient
from gateway_service.console.routes import console_routes
from gateway_service.http.json_body import BodyReader
from tests.harness.waiting import PATIENCE

_MOST_ELEMENTS = 1 << 17


class KeyCheck:
    """Middleware that requires an API key for the console's API, as a gateway does."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = scope["type"] == "http" and scope["path"].startswith("/console/api/")
        if asked and Headers(scope=scope).get("authorization") != f"Bearer {self._key}":
            refused = JSONResponse({"error": {"message": "a valid API key is required"}}, 401)
            await refused(scope, receive, send)
        else:
            await self._app(scope, receive, send)


@contextmanager
def serve_console(verifier: str, *, key: str | None = None, **options: Any) -> Iterator[str]:
    """Serves the console of a verifier and yields its URL. `options` are passed to the client."""
    client = AsyncClient(verifier, **options)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.bodies = BodyReader(_MOST_ELEMENTS)
        try:
            async with client:
                yield
        finally:
            app.state.bodies.close()

    checks = [Middleware(KeyCheck, key=key)] if key is not None else []
    routes = console_routes(lambda: client, asyncio.Event())
    app = Starlette(routes=routes, middleware=checks, lifespan=lifespan)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server does not end"
