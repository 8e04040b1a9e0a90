"""One load of another model: its state for callers, and whether anyone still waits for it."""

from __future__ import annotations

import asyncio
import threading
import time

import grpc
from google.rpc import status_pb2

from draftwire.v1 import drafter_service_pb2
from draftwire.v1.drafter_service_pb2 import ModelLoadState
from draftwire_core.runtime.errors import shutting_down

MOST_SECONDS = 3600.0
"""Longest time of a load. Downloads of models take minutes, and nothing that takes an hour is still loading."""


class RunningLoad:
    """A load in a thread of its own, which ends it at its next step once `given_up` is set. All else is used in the
    event loop only."""

    def __init__(self, model: str, request_id: str) -> None:
        self.message = drafter_service_pb2.ModelLoad(
            model=model, request_id=request_id, state=ModelLoadState.MODEL_LOAD_STATE_LOADING
        )
        """The load as callers see it."""
        self.message.started_at.GetCurrentTime()
        self.given_up = threading.Event()
        self._reason = status_pb2.Status()
        self._begun = time.monotonic()
        self._ended = asyncio.Event()
        self._kept = False
        self._waiting = 0
        self._limit = asyncio.get_running_loop().call_later(MOST_SECONDS, self._give_up_late)

    @property
    def seconds(self) -> float:
        """Time since it began."""
        return time.monotonic() - self._begun

    def keep(self) -> None:
        """Makes it independent of the calls that wait for it."""
        self._kept = True

    async def wait(self) -> None:
        """Waits until it has ended. If the last caller that waits is cancelled, so is the load, unless it is kept."""
        self._waiting += 1
        try:
            await self._ended.wait()
        finally:
            self._waiting -= 1
            if not (self._waiting or self._kept):
                self.give_up(grpc.StatusCode.CANCELLED, "loading was cancelled, since its caller has left")

    def give_up(self, code: grpc.StatusCode, reason: str) -> None:
        """Ends it at its next step. Does nothing if it has ended, or is about to."""
        if self._ended.is_set() or self.given_up.is_set():
            return
        self._reason = status_pb2.Status(code=code.value[0], message=reason)
        self.given_up.set()

    def served(self) -> None:
        """Ends it: the model is served."""
        self._end(ModelLoadState.MODEL_LOAD_STATE_SERVING)

    def failed(self, error: status_pb2.Status) -> None:
        """Ends it with an error, unless it has ended."""
        if self._ended.is_set():
            return
        self.message.error.CopyFrom(error)
        self._end(ModelLoadState.MODEL_LOAD_STATE_FAILED)

    def cancelled(self) -> None:
        """Ends it after it was given up."""
        self.failed(self._reason)

    def leave(self) -> None:
        """Ends it for its callers, since the service ends, and at its next step for its thread."""
        self.given_up.set()
        self.failed(shutting_down().to_status())

    def _end(self, state: ModelLoadState) -> None:
        self._limit.cancel()
        self.message.state = state
        self._ended.set()

    def _give_up_late(self) -> None:
        self.give_up(grpc.StatusCode.DEADLINE_EXCEEDED, f"loading was cancelled after {MOST_SECONDS:g} s")
