"""The console on a real HTTP server, in a thread of this process."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request

from draftwire import AsyncClient
from gateway.console.routes import allow_all, console_routes

END_SECONDS = 20.0


@contextmanager
def serve_console(verifier: str, allows: Callable[[Request], bool] = allow_all, **options: Any) -> Iterator[str]:
    """Serve the console of a verifier; yields where it is. options: of the client."""
    client = AsyncClient(verifier, **options)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with client:
            yield

    app = Starlette(routes=console_routes(client, allows=allows), lifespan=lifespan)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(END_SECONDS)
            assert not thread.is_alive(), "the server does not end"
