"""The names under which the gateway may be called."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from draftwire._types.address import is_loopback_host
from gateway.http.errors import GatewayError
from gateway.http.host import host_of

_OPEN = ("/health", "/ping")
"""Asked by those who watch over processes, under whatever name; it tells nothing of requests."""


def allowed_hosts(given: Sequence[str], listen: str, *, keyed: bool) -> frozenset[str] | None:
    """Return the hosts under which clients may call; None for all.

    Without hosts given it is all of them, unless the gateway listens on loopback alone and asks for no key: then it is
    those of loopback. A browser on this machine can connect, too, on behalf of any page whose name is made to resolve
    to it.

    Args:
        given: hosts, perhaps with ports.
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
    """ASGI middleware: refuses requests for other hosts, before anything else of them is looked at."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        """Stand before `app`; hosts: names and addresses, without ports."""
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it. One that names no host comes from no browser."""
        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else ""
        if host and scope["path"] not in _OPEN and host_of(host) not in self._hosts:
            message = "this gateway is not called by that name: --allowed-host names those that it has"
            await GatewayError(message, code="unknown_host", status=403).response()(scope, receive, send)
            return
        await self._app(scope, receive, send)
