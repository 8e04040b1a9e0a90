"""Gives up on a peer that has been silent for too long."""

import asyncio
import time

import grpc

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime.errors import ServiceError

_LATE_SECONDS = 1.0
"""Delay of a timer that shows that the process was held up, so incoming messages may be unread."""


class IdleWatch:
    """Tracks when the peer was last heard; `run`, in one task, raises after too long a silence."""

    def __init__(self, seconds: float) -> None:
        """seconds: longest silence of the peer; 0 waits forever."""
        self._seconds = seconds
        self._heard = time.monotonic()

    def heard(self) -> None:
        """Records that something came from the peer."""
        self._heard = time.monotonic()

    async def run(self) -> None:
        """Raises ServiceError once the peer has been silent for too long; returns immediately if there is no limit."""
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
            f"the other side sent nothing for {self._seconds:g} seconds",
        )
