"""Gives up a peer that has been silent for too long."""

import asyncio
import time

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.errors import ServiceError

_LATE_SECONDS = 1.0
"""A timer this late says that the process was held up, and with it the reading of what had come."""


class IdleWatch:
    """Knows when the peer was heard last; `run`, in one task, ends the wait for it."""

    def __init__(self, seconds: float) -> None:
        """seconds: silence after which the peer is given up; 0 waits for ever."""
        self._seconds = seconds
        self._heard = time.monotonic()

    def heard(self) -> None:
        """Something came from the peer."""
        self._heard = time.monotonic()

    async def run(self) -> None:
        """Returns at once where there is nothing to watch. Raises ServiceError after the silence."""
        if not self._seconds:
            return
        self.heard()
        while (left := self._heard + self._seconds - time.monotonic()) > 0:
            due = time.monotonic() + left
            await asyncio.sleep(left)
            if time.monotonic() - due > _LATE_SECONDS:
                self.heard()
        raise ServiceError(
            grpc.StatusCode.DEADLINE_EXCEEDED,
            ErrorReason.ERROR_REASON_IDLE,
            f"nothing came from the other side for {self._seconds:g} seconds",
        )
