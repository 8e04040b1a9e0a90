"""Hosts of requests and origins, and the host names under which the gateway may be called."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwire._types.address import is_loopback_host
from gateway_service.http.errors import GatewayError

_FORM = re.compile(
    r"(?:\[(?P<v6>[0-9a-f:.]{2,45})\]|(?P<name>[a-z0-9_](?:[a-z0-9_.-]{0,253}[a-z0-9_])?\.?))(?::(?P<port>\d{1,5}))?"
)
_ORIGIN = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<host>.+)")
_LAST_PORT = 65535
_OWN_PORTS = {"http": "80", "https": "443"}
"""Default ports by scheme, which browsers omit."""


def host_of(text: str) -> str | None:
    """Returns the normalized host of HOST or HOST:PORT, [HOST] for IPv6; None for any other text."""
    found = _FORM.fullmatch(text.lower())
    if found is None or int(found["port"] or 0) > _LAST_PORT:
        return None
    if found["v6"] is None:
        return str(found["name"]).removesuffix(".")
    try:
        return str(ipaddress.IPv6Address(found["v6"]))
    except ValueError:
        return None


def is_origin(text: str) -> bool:
    """Returns whether a text is an origin as browsers write it: SCHEME://HOST, with :PORT if not the scheme's
    default."""
    found = _ORIGIN.fullmatch(text)
    if found is None or text != text.lower() or host_of(found["host"]) is None:
        return False
    port = found["host"].rpartition(":")[2]
    return port != _OWN_PORTS.get(found["scheme"])


_OPEN = ("/health", "/ping")
"""Paths open under any name, for process monitors; they reveal nothing about requests."""
_SCRAPED = "/metrics"
"""Path open under any IP address: Prometheus calls pods by theirs. No web page's name can be made to resolve to this
machine and be an address."""


def allowed_hosts(given: Sequence[str], listen: str, *, keyed: bool) -> frozenset[str] | None:
    """Returns the hosts under which clients may call; None for all.

    Without given hosts all are allowed, unless the gateway listens on loopback only and needs no key: then only
    loopback's names are. Otherwise a web page whose name is made to resolve to loopback could call the gateway through
    a browser on this machine.

    Args:
        given: hosts, optionally with ports.
        listen: address that the gateway listens on, HOST:PORT.
        keyed: whether requests need a key.
    """
    if given:
        return frozenset(host for host in map(host_of, given) if host is not None)
    listened = listen.rpartition(":")[0]
    if keyed or not is_loopback_host(listened):
        return None
    own = host_of(listened)
    return frozenset({"localhost", "127.0.0.1", "::1"} | ({own} if own is not None else set()))


class HostCheck:
    """ASGI middleware that refuses requests for other hosts before anything else in them is read."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        """app: the application to protect. hosts: allowed names and addresses, without ports."""
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes the request on, or refuses it. A request without a host cannot come from a browser."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if host and scope["path"] not in _OPEN and not self._allows(host_of(host), scope["path"]):
            message = "host name not allowed; add it with --allowed-host"
            await GatewayError(message, code="unknown_host", status=403).response()(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _allows(self, host: str | None, path: str) -> bool:
        return host in self._hosts or (path == _SCRAPED and host is not None and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
