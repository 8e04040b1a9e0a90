"""Callers that have flooded Verify, which is refused to them for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.pool.standing.circuit_breaker import CircuitBreaker
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)

_MOST = 1024
"""Maximum number of callers that are remembered; the one that flooded longest ago is forgotten."""


class Flooders:
    """Counts floods by peer. Three within a minute suspend it, as they suspend a drafter of the pool.

    Otherwise a caller could open one stream after the other, and flood each up to its limit.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: a clock in seconds with any origin."""
        self._clock = clock
        self._breakers: OrderedDict[str, CircuitBreaker] = OrderedDict()

    def check(self, peer: str) -> None:
        """Raises ServiceError (CREDIT_EXCEEDED) with RetryInfo for a suspended peer."""
        breaker = self._breakers.get(peer)
        seconds = 0.0 if breaker is None else breaker.paused_seconds
        if seconds > 0:
            raise ServiceError(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                ErrorReason.ERROR_REASON_CREDIT_EXCEEDED,
                f"{peer or 'the caller'} sent more proposals than it was asked for, three times within a minute; "
                f"Verify is refused for {seconds:.0f} s",
                retry_after_seconds=seconds,
            )

    def count(self, peer: str) -> None:
        """Counts a flood."""
        breaker = self._breakers.setdefault(peer, CircuitBreaker(self._clock))
        self._breakers.move_to_end(peer)
        if len(self._breakers) > _MOST:
            self._breakers.popitem(last=False)
        if breaker.paused_seconds == 0 and breaker.count():
            log.warning("caller suspended", peer=peer, seconds=breaker.take_pause())
