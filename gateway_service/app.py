"""The gateway as an ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

from draftwire import AsyncClient, DraftwireError, SpreadPolicy, __version__
from draftwire._types.quoting import shortened
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.tls_settings import CertificateExpiry
from gateway_service.answers.checked.argument_checks import ArgumentChecks
from gateway_service.choices.responder import CACHED, Responder
from gateway_service.console.routes import console_routes
from gateway_service.http.connection import ClientLeft
from gateway_service.http.errors import GatewayError, from_draftwire, from_validation
from gateway_service.http.host_check import HostCheck, allowed_hosts
from gateway_service.http.json_body import BodyReader
from gateway_service.http.left_out import HEADER, VIOLATIONS
from gateway_service.http.origin_check import OriginCheck
from gateway_service.http.request_body import BodyLimit
from gateway_service.http.request_log import FINGERPRINT, RequestLog
from gateway_service.keys.api_keys import RATE_LIMIT_HEADERS, ApiKeys, KeyCheck
from gateway_service.keys.grant import CLIENT
from gateway_service.models.discovery import Discovery
from gateway_service.models.models import Models
from gateway_service.observability.metrics import Metrics
from gateway_service.observability.tracing import TELEMETRY
from gateway_service.routes import completions, models, responses, status, tokens
from gateway_service.routes.state import State
from gateway_service.security import served_models, verifier_calls
from gateway_service.settings import GatewaySettings

log = get_logger(__name__)

_CLIENT_LEFT = 499
"""Status logged for a client that left, as nginx does; nobody receives it."""

_descriptions: dict[bool, dict[str, Any]] = {}
"""OpenAPI descriptions, by whether calls need a key, their only variable. Generating one takes a third of a second."""


def make_app(settings: GatewaySettings, keys: ApiKeys) -> FastAPI:
    """Returns the application, which has a client of the verifiers while it runs.

    Raises:
        StartupError: the verifiers cannot be called with these settings; the message names the flag.
    """
    calls = verifier_calls(settings)
    metrics = Metrics(CertificateExpiry(settings))
    entries = served_models(settings, calls)
    spread = SpreadPolicy(settings.spread_prefix_bytes, settings.spread_load_bound)

    def connect(verifiers: tuple[str, ...]) -> AsyncClient:
        return AsyncClient(verifiers, spread=spread, on_behalf_of=CLIENT.get, **calls.options)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            Discovery(entries, connect) as discovered,
            Models(discovered, connect, settings.request_seconds) as models,
        ):
            metrics.verifiers.follow(lambda: models.clients)
            checks = ArgumentChecks()
            responder = Responder(settings, metrics, checks)
            app.state.gateway = State(settings, models, responder, metrics)
            if settings.console:
                app.router.routes.extend(console_routes(lambda: models.first.client, app.state.ending))
            app.state.bodies = BodyReader(settings.max_body_elements)
            try:
                yield
            finally:
                app.state.bodies.close()
                responder.close()
                await checks.close()

    app = FastAPI(
        title="draftwire gateway",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # those pages load scripts from other hosts
        redoc_url=None,
        middleware=_middleware(settings, keys, metrics),
        exception_handlers=_handlers(metrics),
        telemetry=TELEMETRY,
    )
    app.state.ending = asyncio.Event()  # set when the gateway begins to shut down
    keyed = [Depends(HTTPBearer(auto_error=False))] if keys else []  # for the description only; KeyCheck does the work
    for router in (completions.router, responses.router, models.router, tokens.router):
        app.include_router(router, dependencies=keyed)
    app.include_router(status.router)
    if bool(keys) not in _descriptions:
        _descriptions[bool(keys)] = _describe(app)
    app.openapi_schema = _descriptions[bool(keys)]
    return app


def _middleware(settings: GatewaySettings, keys: ApiKeys, metrics: Metrics) -> Sequence[Middleware]:
    """Returns the middleware, outermost first."""
    hosts = allowed_hosts(settings.allowed_host, settings.listen, keyed=bool(keys))
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.allowed_origin,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after", CACHED, FINGERPRINT, HEADER, VIOLATIONS, *RATE_LIMIT_HEADERS],
    )
    return [
        Middleware(RequestLog, metrics=metrics),
        *([Middleware(HostCheck, hosts=hosts)] if hosts is not None else []),
        Middleware(OriginCheck, allowed=settings.allowed_origin),
        *([cors] if settings.allowed_origin else []),
        Middleware(KeyCheck, keys=keys, metrics=metrics.keys),
        Middleware(BodyLimit, max_bytes=settings.max_body_bytes, seconds=settings.body_seconds),
    ]


def _handlers(metrics: Metrics) -> dict[Any, Any]:
    """Returns the handlers that turn a route's errors into responses."""

    async def gateway_error(_: Request, error: GatewayError) -> Response:
        return told(error, error.__cause__)

    async def draftwire_error(_: Request, error: DraftwireError) -> Response:
        return told(from_draftwire(error), error)

    def told(error: GatewayError, cause: BaseException | None) -> Response:
        if isinstance(cause, DraftwireError) and error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            log.warning("verifier call failed", error=type(cause).__name__, status=error.status)
        return error.response()

    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return from_validation(error.errors()[0]).response()

    async def http_error(request: Request, error: HTTPException) -> Response:
        place = f"{request.method} {shortened(request.url.path)}"
        message = f"{place}: {error.detail}"
        if error.status_code == HTTPStatus.NOT_FOUND:
            message = f"{place}: there is no such path; the paths are {_paths(request.app)}"
        response = GatewayError(message, status=error.status_code).response()
        response.headers.update(error.headers or {})
        return response

    async def not_unicode(_: Request, error: UnicodeEncodeError) -> Response:
        message = f"the body has text that is not valid Unicode: {error.reason}"
        return GatewayError(message, code="invalid_value").response()

    async def left(_: Request, error: ClientLeft) -> Response:
        metrics.disconnects.inc()
        return Response(status_code=_CLIENT_LEFT)

    async def fault(_: Request, error: Exception) -> Response:
        return GatewayError("internal error; the gateway's log has the cause", status=500, code="internal").response()

    return {
        GatewayError: gateway_error,
        DraftwireError: draftwire_error,
        RequestValidationError: invalid,
        HTTPException: http_error,
        UnicodeEncodeError: not_unicode,  # half of a surrogate pair, which JSON can express and the wire cannot
        ClientLeft: left,
        Exception: fault,  # logged with its traceback by the server, where it is raised again
    }


def _paths(app: FastAPI) -> str:
    """Returns the served calls, taken from the API's description."""
    calls = [f"{method.upper()} {path}" for path, operations in app.openapi()["paths"].items() for method in operations]
    return ", ".join([*calls, f"GET {app.openapi_url}"])


def _describe(app: FastAPI) -> dict[str, Any]:
    """Returns the API's description, without FastAPI's own error schemas."""
    description = app.openapi()
    for path in description["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        description["components"]["schemas"].pop(name, None)
    return description
