"""Admission of requests: limits the number of choices generated at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway_service.http.errors import RETRY_SECONDS, GatewayError
from gateway_service.observability.metrics import Metrics


class Admission:
    """A fixed number of places for choices being generated."""

    def __init__(self, places: int, metrics: Metrics) -> None:
        """Starts with all places free."""
        self._places = self._free = places
        self._metrics = metrics

    @contextmanager
    def taken(self, choices: int) -> Iterator[None]:
        """Holds places for a request's choices.

        Raises:
            GatewayError: there are not enough places.
        """
        if choices > self._free:
            raise GatewayError(
                f"{self._places - self._free} generations are running and {choices} more were asked for; "
                f"at most {self._places} may run (--max-generations)",
                status=429,
                code="rate_limit_exceeded",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._free -= choices
        self._metrics.generations.inc(choices)
        try:
            yield
        finally:
            self._free += choices
            self._metrics.generations.dec(choices)
