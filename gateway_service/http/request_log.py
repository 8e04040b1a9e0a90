"""Logs and counts each request."""

from __future__ import annotations

import re
import secrets
import time
from http import HTTPStatus

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from draftwire_core.runtime.process.logs import get_logger
from gateway_service.observability.metrics import Metrics
from gateway_service.observability.tracing import name_span

log = get_logger(__name__)
_NAME = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_UNKNOWN = "unknown"
_PROBES = ("/health", "/ping", "/metrics")
"""Paths whose requests are logged at the level debug unless they fail."""
FINGERPRINT = "x-draftwire-fingerprint"
"""Header with the fingerprint of the model and the numerics that serve a request, once they are chosen."""
MADE = "req_"
"""Prefix of the request ids that the gateway makes."""


class RequestLog:
    """ASGI middleware that gives each request an id (``x-request-id``, the client's own if it sent one), logs and
    counts it, and names the fingerprint that `head_of` has recorded.

    It logs neither keys nor texts.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        """app: the application to log."""
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        name = given if _NAME.fullmatch(given) else f"{MADE}{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = name
        status = 0  # no response was begun: the client left

        async def tell(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = name
                if (fingerprint := scope["state"].get("fingerprint")) is not None:
                    headers[FINGERPRINT] = fingerprint
            await send(message)

        began = time.monotonic()
        with structlog.contextvars.bound_contextvars(request_id=name, **name_span(name)):
            try:
                await self._app(scope, receive, tell)
            except Exception:
                status = 500
                raise
            finally:
                seconds = time.monotonic() - began
                path = getattr(scope.get("route"), "path", None) or _UNKNOWN  # unknown paths are unlimited
                self._metrics.requests.labels(path, status).inc()
                self._metrics.seconds.labels(path).observe(seconds)
                grant = scope["state"].get("grant")
                told = {"method": scope["method"], "path": path, "status": status, "seconds": round(seconds, 4)}
                told |= {} if grant is None else {"key": grant.key.name}
                if path in _PROBES and status < HTTPStatus.BAD_REQUEST:  # they ask several times a minute
                    log.debug("request finished", **told)
                else:
                    log.info("request finished", **told)
