"""The web origins whose pages may call the gateway through a browser."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwire._types.quoting import shortened
from gateway_service.http.errors import GatewayError

ANY = "*"
"""The value of an allowed origin that allows every origin."""
_READING = ("GET", "HEAD")
_OF_PAGES = "/console/api/"
"""Prefix of the console's own calls, checked for every method: pages of other origins have no use for them."""
_PORTS = {"http": 80, "https": 443}
_OWN = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` for calls by the gateway's own page and by the user directly."""


class OriginCheck:
    """ASGI middleware that refuses requests made by pages of other origins, unless the origin is allowed.

    Browsers report the source of a call in `Sec-Fetch-Site` and `Origin`, which pages cannot set. Other clients send
    neither header and pass. A plain GET passes as well: it changes nothing, and browsers keep its response from the
    page.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        """app: the application to protect. allowed: origins besides the gateway's own, as browsers write them, or
        `*`."""
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it."""
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if self._is_checked(scope, headers) and not self._passes(headers):
                await _refusal(headers).response()(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_checked(self, scope: Scope, headers: Headers) -> bool:
        if scope["method"] == "OPTIONS":
            return "access-control-request-method" in headers
        return scope["method"] not in _READING or scope["path"].startswith(_OF_PAGES)

    def _passes(self, headers: Headers) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if ANY in self._allowed or origin in self._allowed:
            return True
        if site is not None:  # the browser's own finding, valid even if a proxy changed the host
            return site in _OWN
        return origin is None or _is_at(origin, headers.get("host", ""))


def _is_at(origin: str, host: str) -> bool:
    """Returns whether an origin is the host that was called. The scheme may differ: a proxy may have terminated TLS."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return bool(parts.netloc) and host.lower() in (parts.netloc, f"{parts.netloc}:{_PORTS.get(parts.scheme)}")


def _refusal(headers: Headers) -> GatewayError:
    origin = shortened(headers.get("origin", "another site"))
    message = f"origin {origin} not allowed; add it with --allowed-origin"
    return GatewayError(message, status=403, code="foreign_origin")
