"""A watched verifier, which is read periodically, whether or not it is reachable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime

from draftwire._async.client import AsyncClient
from draftwire._types.drafter import Drafter
from draftwire.errors import DraftwireError
from draftwire_tools.top.drafter_figures import DrafterFigures, drafter_figures
from draftwire_tools.top.event import Event, pool_changes
from draftwire_tools.top.sample import Sample
from draftwire_tools.top.verifier_figures import VerifierFigures, verifier_figures

ANSWER_SECONDS = 5.0
"""Timeout of a reading, after which the verifier is reported as unreachable."""


class WatchedVerifier:
    """Reads one verifier, keeps its last two readings, and reports events of its pool."""

    def __init__(self, client: AsyncClient, address: str, tell: Callable[[Event], object]) -> None:
        """Watches the verifier at an address through a client for it alone; ``tell`` is called with each event."""
        self.address = address
        self._client = client
        self._tell = tell
        self._now: Sample | None = None
        self._before: Sample | None = None
        self._error: str | None = None
        self._pool: list[Drafter] | None = None

    @property
    def reached(self) -> bool:
        """Whether the last reading succeeded."""
        return self._now is not None and self._error is None

    def figures(self) -> VerifierFigures:
        """Returns the verifier's figures."""
        return verifier_figures(self.address, self._now, self._before, self._error)

    def drafters(self) -> list[DrafterFigures]:
        """Returns its drafters' figures; none while it is unreachable."""
        return drafter_figures(self.address, self._now, self._before) if self._now and self.reached else []

    async def read(self) -> None:
        """Takes a reading, or records its error."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                info = await self._client.model_info()
                drafters = await self._client.drafters.list()
        except TimeoutError:
            self._lost(f"no answer within {ANSWER_SECONDS:g} s")
        except DraftwireError as error:
            self._lost(str(error))
        else:
            self._take(Sample(time.monotonic(), info, drafters))

    async def follow_pool(self, pause: Callable[[], float]) -> None:
        """Reports changes of the pool until cancelled. ``pause`` returns the seconds to wait if it is unreachable."""
        while True:
            try:
                async with self._client.drafters.watch() as states:
                    async for state in states:
                        self._take_pool(state)
            except DraftwireError as error:
                broken = str(error)
            else:
                broken = "the stream ended"
            reached = self.reached
            await asyncio.sleep(pause())
            if reached and self.reached:  # otherwise its loss has already been reported
                self._happened(f"changes of its pool were missed for a while: {broken}")

    def _take(self, sample: Sample) -> None:
        last = self._now
        if last is not None and self._error is not None:
            self._happened("is reachable again")
        if last is not None and sample.info.started_at != last.info.started_at:
            self._happened("was restarted")
        if last is not None and sample.follows(last):
            preempted = sample.info.engine.preemptions - last.info.engine.preemptions
            if preempted:
                self._happened(f"requests preempted: {preempted}")
        # A rate over the time in which it could not be read would appear as a current one.
        self._before = last if last is not None and self._error is None and sample.follows(last) else None
        self._now, self._error = sample, None

    def _take_pool(self, state: list[Drafter]) -> None:
        for change in pool_changes(self._pool, state) if self._pool is not None else ():
            self._happened(change)
        self._pool = state

    def _lost(self, error: str) -> None:
        if self._error is None and self._now is not None:
            self._happened(f"cannot be reached: {error}")
        self._error = error

    def _happened(self, what: str) -> None:
        self._tell(Event(datetime.now(UTC), self.address, what))
