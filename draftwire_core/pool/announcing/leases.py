"""The leases of drafters that were attached for as long as somebody renews them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context

MOST_LEASE_SECONDS = 86400.0


class Leases:
    """Attachments that end unless they are renewed, by the drafter's name. A lease survives its drafter: one that was
    swapped out and is attached again by a swap has it still. Used in the event loop only."""

    def __init__(self, on_expiry: Callable[[str], None]) -> None:
        """on_expiry: called with the name of a drafter whose lease has ended without renewal."""
        self._on_expiry = on_expiry
        self._expiry: dict[str, asyncio.TimerHandle] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._expiry

    def renew(self, name: str, seconds: float) -> None:
        """Begins a lease or renews it, for so many seconds from now. A lease is never shortened."""
        loop = asyncio.get_running_loop()
        known = self._expiry.get(name)
        end = loop.time() + seconds
        if known is not None:
            end = max(end, known.when())
            known.cancel()
        self._expiry[name] = loop.call_at(end, self._expire, name, context=Context())  # without the call's log fields

    def end(self, name: str) -> float | None:
        """Ends a lease without consequences: the drafter was detached, or stays for good. Returns the seconds that were
        left of it; None if there was none."""
        timer = self._expiry.pop(name, None)
        if timer is None:
            return None
        timer.cancel()
        return timer.when() - asyncio.get_running_loop().time()

    def shut_down(self) -> None:
        """Ends all leases without consequences."""
        for name in list(self._expiry):
            self.end(name)

    def _expire(self, name: str) -> None:
        self._expiry.pop(name, None)
        self._on_expiry(name)
