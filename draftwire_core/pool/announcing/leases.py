"""The leases of drafters that were attached for as long as somebody renews them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass

MOST_LEASE_SECONDS = 86400.0


@dataclass(frozen=True, slots=True)
class _Lease:
    end: float
    """Time of the event loop at which the lease ends. The timer does not know it: uvloop returns a handle without a
    time if the call is due at once."""
    timer: asyncio.TimerHandle


class Leases:
    """Attachments that end unless they are renewed, by the drafter's name. A lease survives its drafter: one that was
    swapped out and is attached again by a swap has it still. Used in the event loop only."""

    def __init__(self, on_expiry: Callable[[str], None]) -> None:
        """on_expiry: called with the name of a drafter whose lease has ended without renewal."""
        self._on_expiry = on_expiry
        self._leases: dict[str, _Lease] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._leases

    def renew(self, name: str, seconds: float) -> None:
        """Begins a lease or renews it, for so many seconds from now. A lease is never shortened."""
        loop = asyncio.get_running_loop()
        known = self._leases.get(name)
        end = loop.time() + seconds
        if known is not None:
            end = max(end, known.end)
            known.timer.cancel()
        timer = loop.call_at(end, self._expire, name, context=Context())  # without the call's log fields
        self._leases[name] = _Lease(end, timer)

    def end(self, name: str) -> float | None:
        """Ends a lease without consequences: the drafter was detached, or stays for good. Returns the seconds that were
        left of it; None if there was none."""
        lease = self._leases.pop(name, None)
        if lease is None:
            return None
        lease.timer.cancel()
        return lease.end - asyncio.get_running_loop().time()

    def shut_down(self) -> None:
        """Ends all leases without consequences."""
        for name in list(self._leases):
            self.end(name)

    def _expire(self, name: str) -> None:
        self._leases.pop(name, None)
        self._on_expiry(name)
