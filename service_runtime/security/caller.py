"""The caller of a call: the entry of its token, and the name that limits count by."""

from contextvars import ContextVar
from dataclasses import dataclass
from urllib.parse import unquote

from service_runtime.process.address import Address
from service_runtime.security.roles import Role


@dataclass(frozen=True)
class Caller:
    """One entry of the file of accepted tokens, without the token."""

    name: str
    """Name of the entry: it stands in the log, and limits count by it."""
    roles: frozenset[Role]
    """What the caller may do."""
    max_requests: int | None = None
    """Most requests that run or wait, in place of the service's own limit; 0 sets no limit."""
    max_tokens: int | None = None
    """Most tokens of these, at their greatest lengths, in place of the service's own limit; 0 sets no limit."""


_CURRENT: ContextVar[Caller | None] = ContextVar("draftwire_caller", default=None)


def current_caller() -> Caller | None:
    """The caller of the call that is handled here; None where no token is asked for, and outside of calls."""
    return _CURRENT.get()


def set_caller(caller: Caller | None) -> None:
    """Says who makes the call that this task handles; the interceptor does, and nobody else."""
    _CURRENT.set(caller)


def peer_name(peer: str) -> str:
    """Whom the call that is handled here counts for: its caller, or the host in gRPC's name of the peer."""
    caller = current_caller()
    return peer_host(peer) if caller is None else caller.name


def peer_host(peer: str) -> str:
    """The host in gRPC's name of a peer: `ipv4:10.0.0.7:51234` is 10.0.0.7. Of another kind, the name itself."""
    kind, _, address = peer.partition(":")
    if kind not in ("ipv4", "ipv6"):
        return peer
    return Address.parse(unquote(address)).host
