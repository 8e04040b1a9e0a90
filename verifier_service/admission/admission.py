"""Whether one more request is let in: by how many there are, and by how long it would wait."""

from __future__ import annotations

import math

from service_runtime.errors import at_capacity
from verifier_service.admission.expected_wait import ExpectedWait

_RETRY_SECONDS = 1.0
"""When to try again where nothing tells better."""
_LEAST_RETRY_SECONDS = 0.1


class Admission:
    """Refuses at once what would be of no use later, so that those who are let in wait for a bounded time."""

    def __init__(self, wait: ExpectedWait, max_requests: int, max_wait_seconds: float = 0.0):
        """max_requests: most that run and wait. max_wait_seconds: longest expected wait; 0 sets no limit."""
        self.wait = wait
        self._max_requests = max_requests
        self._max_wait_seconds = max_wait_seconds

    def check(self, requests: int, places: int, remaining: float | None = None) -> None:
        """Raise ServiceError, AT_CAPACITY with RetryInfo, unless a request may come beside so many.

        places: how many run at once. remaining: seconds until the request's deadline; None if it has none.
        """
        if requests >= self._max_requests:
            raise at_capacity(f"{requests} requests run or wait already", _RETRY_SECONDS)
        if not self._max_wait_seconds and remaining is None:
            return
        expected = self.wait.seconds(places)
        most, whose = self._max_wait_seconds or math.inf, "--max-wait-seconds"
        if remaining is not None and remaining < most:
            most, whose = remaining, "the request's deadline"
        if expected > most:
            raise at_capacity(
                f"{requests} requests are ahead; the wait would be about {expected:.1f} s, {whose} leaves {most:.1f} s",
                # If no others come, the wait is down to that by then.
                max(_LEAST_RETRY_SECONDS, expected - most),
            )
