"""Where a call goes, and whether it is tried again.

A client has a list of verifiers and stays with one as long as it works. A call that finds it unreachable moves on to
the next; so does a stream that breaks, which the next verifier goes on with from the tokens it has. Only lost
connections and verifiers that shut down are tried again, and full verifiers for a request that has begun: every other
error is an answer.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

import grpc

from draftwire.errors import AtCapacityError, DraftwireError, ErrorReason, UnavailableError
from draftwire.names import is_name

_BROKEN_CODES = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
)
"""What gRPC calls a connection or stream that broke, depending on how it broke."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How a client deals with verifiers that cannot be reached."""

    attempts_per_address: int = 4
    """Attempts at each address, in turn, before the error is raised. A stream that got tokens counts afresh."""
    initial_backoff: float = 0.1
    """Seconds to wait after each address has failed once; doubled every time."""
    max_backoff: float = 2.0
    """Longest wait between two attempts, in seconds."""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: no attempt, or a negative wait.
        """
        if self.attempts_per_address < 1 or self.initial_backoff < 0 or self.max_backoff < 0:
            raise ValueError(f"attempts must be at least 1 and waits at least 0: {self}")


class Endpoints:
    """The addresses of a client and the one in use. Safe to use from several threads.

    A DNS name stands for all its addresses. Whoever makes a call looks its names up first when they are ``stale``: at
    the start, and after an address in use was left.
    """

    def __init__(self, addresses: tuple[str, ...], *, look_up: bool = True) -> None:
        """Start with the first address; without ``look_up`` names are left to gRPC."""
        self._configured = addresses
        self._names = tuple(address for address in addresses if look_up and is_name(address))
        self._addresses = addresses
        self._index = 0
        self._stale = bool(self._names)
        self._authorities: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def addresses(self) -> tuple[str, ...]:
        """All addresses; those of a name in its place once it was looked up."""
        return self._addresses

    @property
    def names(self) -> tuple[str, ...]:
        """The names to look up."""
        return self._names

    @property
    def stale(self) -> bool:
        """True when the names should be looked up before the next call."""
        return self._stale

    @property
    def current(self) -> str:
        """The address in use."""
        with self._lock:
            return self._addresses[self._index]

    def authority(self, address: str) -> str | None:
        """The name and port an address was found under, if it was."""
        return self._authorities.get(address)

    def update(self, found: dict[str, tuple[str, ...]]) -> None:
        """Take the addresses of names. The one in use stays in use if it is still among them."""
        with self._lock:
            current = self._addresses[self._index]
            behind = [(address, name) for name in self._configured for address in found.get(name, (name,))]
            self._addresses = tuple(dict.fromkeys(address for address, _ in behind))
            self._index = self._addresses.index(current) if current in self._addresses else 0
            self._authorities = {address: name for address, name in behind if address != name}
            self._stale = False

    def leave(self, address: str) -> None:
        """Move on to the next address, unless another call has moved on from this one already."""
        with self._lock:
            if self._addresses[self._index] == address:
                self._index = (self._index + 1) % len(self._addresses)
                self._stale = bool(self._names)


class Attempts:
    """The attempts of one call: where the next goes, and when."""

    def __init__(
        self, endpoints: Endpoints, policy: RetryPolicy, *, repeatable: bool = True, stays: bool = False
    ) -> None:
        """Start with no attempt made.

        Args:
            endpoints: where it may go.
            policy: how often, and when.
            repeatable: False allows one attempt, and another only where the service refused it.
            stays: True repeats it where it was made first: it changes something there.
        """
        self._endpoints = endpoints
        self._policy = policy
        self._repeatable = repeatable
        self._stays = stays
        self._address = endpoints.current
        self._failures = 0
        self._refusals = 0
        self._begun = False

    def next_address(self) -> str:
        """Return the address for the next attempt."""
        if not (self._stays and self._failures):
            self._address = self._endpoints.current
        return self._address

    def succeeded(self) -> None:
        """Take note of progress: failures are counted afresh from here."""
        self._failures = self._refusals = 0
        self._begun = True

    def failed(self, error: DraftwireError, deadline: float | None = None) -> float:
        """Return the seconds to wait before the next attempt, which is not later than the deadline.

        Raises:
            DraftwireError: the error itself, when there is to be no other attempt.
        """
        if self._begun and isinstance(error, AtCapacityError):
            return self._until(deadline, self._refused(error))
        if not is_loss(error):
            raise error
        self._failures += 1
        addresses = (self._address,) if self._stays else self._endpoints.addresses
        count = len(addresses)
        final = self._failures >= self._policy.attempts_per_address * count
        final = final or not (self._repeatable or error.reason == ErrorReason.SHUTTING_DOWN)
        if final or not self._stays:
            self._endpoints.leave(self._address)
        if final:
            error.message = f"no answer from {', '.join(addresses)}: {error.message}"
            raise error
        rounds, rest = divmod(self._failures, count)
        if rest:
            return 0.0
        wait = min(self._policy.max_backoff, self._policy.initial_backoff * 2.0 ** (rounds - 1))
        return self._until(deadline, wait)

    def _refused(self, error: AtCapacityError) -> float:
        """Return the wait for a place for a request that has begun: it does not end because a verifier is full."""
        self._endpoints.leave(self._address)
        self._failures = 0
        self._refusals += 1
        if self._refusals % len(self._endpoints.addresses):
            return 0.0
        return self._policy.max_backoff if error.retry_after_seconds is None else error.retry_after_seconds

    @staticmethod
    def _until(deadline: float | None, wait: float) -> float:
        wait *= random.uniform(0.8, 1.2)  # not all clients at once
        return wait if deadline is None else min(wait, max(0.0, deadline - time.monotonic()))


def is_loss(error: DraftwireError) -> bool:
    """Return whether an error says that a connection or a stream broke, or that the service is going away.

    A stream that is reset has many codes; what tells them from the service's answers is that those have a reason.
    """
    if isinstance(error, UnavailableError):
        return True
    return error.reason is None and error.code in _BROKEN_CODES


def deadline_after(timeout: float | None) -> float | None:
    """Return the time, by ``time.monotonic``, at which a call that begins now has to end."""
    return None if timeout is None else time.monotonic() + timeout


def remaining(deadline: float | None) -> float | None:
    """Return the seconds until a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
