"""Admits or refuses a request, by the number of requests and by the expected wait."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from draftwire_core.runtime.errors import at_capacity
from verifier_service.admission.expected_wait import ExpectedWait
from verifier_service.admission.peer_limits import PeerLimits

_RETRY_SECONDS = 1.0
"""Retry delay where no better estimate exists."""
_LEAST_RETRY_SECONDS = 0.1


class Admission:
    """Refuses immediately what would wait too long, so that admitted requests wait for a bounded time."""

    def __init__(
        self,
        wait: ExpectedWait,
        max_requests: int,
        max_wait_seconds: float = 0.0,
        peers: PeerLimits | None = None,
    ):
        """max_requests: most running and waiting requests, those being read included. max_wait_seconds: longest
        expected wait; 0 sets no limit. peers: what each caller may have of them; None sets no limits."""
        self.wait = wait
        self.peers = peers or PeerLimits()
        self.being_read = 0
        """Number of requests being read."""
        self._max_requests = max_requests
        self._max_wait_seconds = max_wait_seconds

    @contextmanager
    def reading(self, peer: str) -> Iterator[None]:
        """Counts a request of a peer as one that waits, until the `with` is left. Raises ServiceError (AT_CAPACITY)
        beyond the peer's limit."""
        with self.peers.reading(peer):
            self.being_read += 1
            try:
                yield
            finally:
                self.being_read -= 1

    def check(self, requests: int, places: int, remaining: float | None = None) -> None:
        """Raises ServiceError, AT_CAPACITY with RetryInfo, unless one more request may join those that run or wait, the
        given number, and those being read.

        places: how many requests run at once. remaining: seconds until the request's deadline; None if it has none.
        """
        requests += self.being_read
        if requests >= self._max_requests:
            raise at_capacity(
                f"{requests} requests are running or waiting; at most {self._max_requests} may "
                "(--max-sequences and --max-waiting)",
                _RETRY_SECONDS,
            )
        if not self._max_wait_seconds and remaining is None:
            return
        expected = self.wait.seconds(places)
        most, whose = self._max_wait_seconds or math.inf, "--max-wait-seconds"
        if remaining is not None and remaining < most:
            most, whose = remaining, "the request's deadline"
        if expected > most:
            raise at_capacity(
                f"{requests} requests are ahead; the wait would be about {expected:.1f} s, "
                f"but {whose} allows {most:.1f} s",
                # By then, if no other request comes, the wait is down to the limit.
                max(_LEAST_RETRY_SECONDS, expected - most),
            )
