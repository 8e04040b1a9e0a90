"""The web pages that may have a browser call the gateway."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwire._types.quoting import shortened
from gateway.http.errors import GatewayError

ANY = "*"
"""The allowed origin that stands for all."""
_READING = ("GET", "HEAD")
_OF_PAGES = "/console/api/"
"""Calls below it are the console's own, whatever their method: a page elsewhere has no use for them."""
_PORTS = {"http": 80, "https": 443}
_OWN = ("same-origin", "none")
"""Values of `Sec-Fetch-Site` for calls of the gateway's own page, and for those that the user makes directly."""


class OriginCheck:
    """ASGI middleware: refuses what a page of another origin has a browser ask for, unless the origin is allowed.

    Browsers say where a call comes from by `Sec-Fetch-Site` and `Origin`, which pages cannot set. Other clients send
    neither header and pass. A plain GET passes, too: it changes nothing, and browsers keep its answer from the page.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        """Stand before `app`; allowed: origins beside the gateway's own, as browsers spell them, or `*`."""
        self._app = app
        self._allowed = frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
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
        if site is not None:  # what the browser itself found out, also where a proxy changed the host
            return site in _OWN
        return origin is None or _is_at(origin, headers.get("host", ""))


def _is_at(origin: str, host: str) -> bool:
    """Whether an origin is the host that was called. A proxy may have done its TLS, so the scheme may be either."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return bool(parts.netloc) and host.lower() in (parts.netloc, f"{parts.netloc}:{_PORTS.get(parts.scheme)}")


def _refusal(headers: Headers) -> GatewayError:
    origin = shortened(headers.get("origin", "of another site"))
    message = f"pages of the origin {origin} may not call this gateway: --allowed-origin names those that may"
    return GatewayError(message, status=403, code="foreign_origin")
