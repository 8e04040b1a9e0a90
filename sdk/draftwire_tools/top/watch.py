"""Concurrent watching of several verifiers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from draftwire._async.client import AsyncClient
from draftwire._calls.failover import RetryPolicy
from draftwire_tools.top.event import Event
from draftwire_tools.top.snapshot import Snapshot
from draftwire_tools.top.watched_verifier import WatchedVerifier

_EVENTS = 256
"""Most events kept; the oldest are dropped first."""
_AT_ONCE = RetryPolicy(attempts_per_address=1)


class Watch:
    """Reads the verifiers periodically."""

    def __init__(self, verifiers: Sequence[WatchedVerifier], events: deque[Event], interval: float) -> None:
        """Starts without a reading. Called by ``watching``."""
        self.interval = interval
        """Seconds from one reading to the next; may be changed at any time."""
        self._verifiers = verifiers
        self._events = events

    @property
    def reached(self) -> bool:
        """Whether the last reading of at least one verifier succeeded."""
        return any(verifier.reached for verifier in self._verifiers)

    async def read(self) -> Snapshot:
        """Reads every verifier and returns a snapshot."""
        async with asyncio.TaskGroup() as tasks:
            for verifier in self._verifiers:
                tasks.create_task(verifier.read())
        return self.snapshot()

    def snapshot(self) -> Snapshot:
        """Returns a snapshot of the last readings."""
        return Snapshot(
            at=datetime.now(UTC),
            verifiers=[verifier.figures() for verifier in self._verifiers],
            drafters=[drafter for verifier in self._verifiers for drafter in verifier.drafters()],
            events=list(self._events),
        )


@asynccontextmanager
async def watching(addresses: Sequence[str], interval: float, **options: Any) -> AsyncIterator[Watch]:
    """Watches the verifiers at these addresses within the ``async with`` block.

    Args:
        addresses: addresses of the verifiers.
        interval: seconds from one reading to the next.
        options: options of the clients, such as ``tls`` and ``token``.

    Raises:
        ValueError: no address or an invalid one, or options that ``AsyncClient`` refuses.
    """
    events: deque[Event] = deque(maxlen=_EVENTS)
    async with AsyncExitStack() as opened:
        verifiers = []
        for address in dict.fromkeys(addresses):
            client = await opened.enter_async_context(AsyncClient(address, retry=_AT_ONCE, **options))
            verifiers.append(WatchedVerifier(client, address, events.append))
        watch = Watch(verifiers, events, interval)
        followers = [asyncio.create_task(each.follow_pool(lambda: watch.interval)) for each in verifiers]
        try:
            yield watch
        finally:
            for follower in followers:
                follower.cancel()
            for ended in await asyncio.gather(*followers, return_exceptions=True):
                if isinstance(ended, Exception):  # not CancelledError, which ends a follower normally
                    raise ended
