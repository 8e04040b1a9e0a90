"""The caller of a call: the entry of its token, and the name that limits apply to."""

from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import unquote

from draftwire_core.runtime.process.address import Address
from draftwire_core.runtime.security.roles import Role


@dataclass(frozen=True)
class Caller:
    """One entry of the file of accepted tokens, without the token."""

    name: str
    """Name of the entry; used in the log and for limits."""
    roles: frozenset[Role]
    """Roles of the caller."""
    max_requests: int | None = None
    """Most running and waiting requests of the caller, in place of the service's own limit; 0 sets no limit."""
    max_tokens: int | None = None
    """Most tokens of the caller's running and waiting requests, at their maximum lengths, in place of the service's own
    limit; 0 sets no limit."""
    client: str | None = None
    """The client of a gateway that the call is for, as the gateway, a trusted one, names it."""

    @property
    def peer(self) -> str:
        """The name that the call counts under: a client of a gateway has its own below the gateway's. No entry of the
        file has a name with a slash."""
        return self.name if self.client is None else f"{self.name}/{self.client}"


_CURRENT: ContextVar[Caller | None] = ContextVar("draftwire_caller", default=None)


def current_caller() -> Caller | None:
    """Returns the caller of the current call; None if no token is required, and outside of calls."""
    return _CURRENT.get()


def set_caller(caller: Caller | None) -> None:
    """Sets the caller of the current task's call; only the interceptor does."""
    _CURRENT.set(caller)


def peer_name(peer: str) -> str:
    """Returns the name that the current call counts under: `Caller.peer`, or the host in gRPC's name of the peer."""
    caller = current_caller()
    return peer_host(peer) if caller is None else caller.peer


def peer_host(peer: str) -> str:
    """Returns the host in gRPC's name of a peer, 10.0.0.7 for `ipv4:10.0.0.7:51234`; other kinds of names are
    unchanged."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return Address.parse(unquote(address)).host
