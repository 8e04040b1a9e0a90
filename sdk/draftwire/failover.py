"""Where a call goes, and whether it is tried again.

A client has a list of verifiers and stays with one as long as it works. A call that finds it unreachable moves on to
the next; so does a stream that breaks, which the next verifier goes on with from the tokens it has. Only lost
connections and verifiers that shut down are tried again: every other error is an answer.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from draftwire.errors import DraftwireError, ErrorReason, UnavailableError


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
    """The addresses of a client and the one in use. Safe to use from several threads."""

    def __init__(self, addresses: tuple[str, ...]) -> None:
        """Start with the first address."""
        self.addresses = addresses
        self._index = 0
        self._lock = threading.Lock()

    @property
    def current(self) -> str:
        """The address in use."""
        return self.addresses[self._index]

    def leave(self, address: str) -> None:
        """Move on to the next address, unless another call has moved on from this one already."""
        with self._lock:
            if self.current == address:
                self._index = (self._index + 1) % len(self.addresses)


class Attempts:
    """The attempts of one call: where the next goes, and when."""

    def __init__(self, endpoints: Endpoints, policy: RetryPolicy, *, repeatable: bool = True) -> None:
        """Start with no attempt made; a call that is not repeatable has one, unless the service refused it."""
        self._endpoints = endpoints
        self._policy = policy
        self._repeatable = repeatable
        self._address = endpoints.current
        self._failures = 0

    def next_address(self) -> str:
        """Return the address for the next attempt."""
        self._address = self._endpoints.current
        return self._address

    def succeeded(self) -> None:
        """Take note of progress: failures are counted afresh from here."""
        self._failures = 0

    def failed(self, error: DraftwireError, deadline: float | None = None) -> float:
        """Return the seconds to wait before the next attempt, which is not later than the deadline.

        Raises:
            DraftwireError: the error itself, when there is to be no other attempt.
        """
        if not isinstance(error, UnavailableError):
            raise error
        self._endpoints.leave(self._address)
        self._failures += 1
        addresses = self._endpoints.addresses
        count = len(addresses)
        final = self._failures >= self._policy.attempts_per_address * count
        if final or not (self._repeatable or error.reason == ErrorReason.SHUTTING_DOWN):
            error.message = f"no answer from {', '.join(addresses)}: {error.message}"
            raise error
        rounds, rest = divmod(self._failures, count)
        if rest:
            return 0.0
        wait = min(self._policy.max_backoff, self._policy.initial_backoff * 2.0 ** (rounds - 1))
        wait *= random.uniform(0.8, 1.2)  # not all clients at once
        return wait if deadline is None else min(wait, max(0.0, deadline - time.monotonic()))


def deadline_after(timeout: float | None) -> float | None:
    """Return the time, by ``time.monotonic``, at which a call that begins now has to end."""
    return None if timeout is None else time.monotonic() + timeout


def remaining(deadline: float | None) -> float | None:
    """Return the seconds until a deadline."""
    return None if deadline is None else max(0.0, deadline - time.monotonic())
