"""Who makes a call, as its token says."""

from contextvars import ContextVar
from dataclasses import dataclass

from service_runtime.roles import Role


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
