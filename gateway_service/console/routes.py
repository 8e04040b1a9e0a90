"""The routes of the console: its page, the page's files, and its API."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from draftwire import AsyncClient, DraftwireError
from gateway_service.console.api_errors import ApiError, error_response
from gateway_service.console.event_stream import ConsoleEvents
from gateway_service.console.forms import GenerateForm, read_form
from gateway_service.console.generation_events import generation_events
from gateway_service.console.page_headers import PageHeaders
from gateway_service.console.pool_api import PoolApi
from gateway_service.console.state_events import StateEvents

STATIC = Path(__file__).parent / "static"

Endpoint = Callable[[Request], Awaitable[Response]]


def console_routes(client: Callable[[], AsyncClient], ending: asyncio.Event) -> list[BaseRoute]:
    """Returns the routes of the console for the verifier of a client. client: returns the current one, which the caller
    closes. ending: set when the gateway begins to shut down.

    The surrounding application checks API keys. After a 401 for a path below ``/console/api/`` the page asks for a key
    and sends it as a bearer token. The page itself and its files hold no secret.
    """
    states = StateEvents(client, ending)
    pool = PoolApi(lambda: client().drafters)

    async def generate(request: Request) -> Response:
        return ConsoleEvents(generation_events(client(), await read_form(request, GenerateForm)))

    async def state(request: Request) -> Response:
        return ConsoleEvents(states.follow())

    async def page(request: Request) -> Response:
        return FileResponse(STATIC / "index.html")

    calls: dict[str, tuple[str, Endpoint]] = {
        "generate": ("POST", generate),
        "state": ("GET", state),
        "drafters/attach": ("POST", pool.attach),
        "drafters/detach": ("POST", pool.detach),
        "drafters/swap": ("POST", pool.swap),
        "rollouts/start": ("POST", pool.start_rollout),
        "rollouts/finish": ("POST", pool.finish_rollout),
    }
    headers = [Middleware(PageHeaders)]
    return [
        Route("/", page, middleware=headers, include_in_schema=False),
        Mount("/console/static", StaticFiles(directory=STATIC), middleware=headers),
        *(
            Route(f"/console/api/{path}", _call(endpoint), methods=[method], include_in_schema=False)
            for path, (method, endpoint) in calls.items()
        ),
    ]


def _call(endpoint: Endpoint) -> Endpoint:
    """Returns an endpoint that reports its errors as JSON."""

    async def call(request: Request) -> Response:
        try:
            return await endpoint(request)
        except ApiError as error:
            return error.response()
        except DraftwireError as error:
            return error_response(error)

    return call
