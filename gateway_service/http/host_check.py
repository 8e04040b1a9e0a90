"""The host names under which the gateway may be called."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwire._types.address import is_loopback_host
from gateway_service.http.errors import GatewayError
from gateway_service.http.host import host_of

_OPEN = ("/health", "/ping")
"""Paths open under any name, for process monitors; they reveal nothing about requests."""


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
        if host and scope["path"] not in _OPEN and host_of(host) not in self._hosts:
            message = "this gateway does not answer to that host name; --allowed-host sets those that it answers to"
            await GatewayError(message, code="unknown_host", status=403).response()(scope, receive, send)
            return
        await self._app(scope, receive, send)
