"""A version number of the pool's state that callers can wait on."""

from __future__ import annotations

import asyncio

from draftwire_core.runtime.errors import shutting_down


class PoolWatch:
    """Counts changes to the list of drafters. Used in the event loop only."""

    def __init__(self) -> None:
        self.version = 0
        """Number of changes so far."""
        self._changed = asyncio.Event()
        self._ending = False

    def notify(self) -> None:
        """Counts a change, and wakes all waiting callers."""
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change_after(self, version: int) -> int:
        """Returns the version as soon as it differs from `version`. Raises ServiceError after `end`."""
        while self.version == version and not self._ending:
            await self._changed.wait()
        if self._ending:
            raise shutting_down()
        return self.version

    def end(self) -> None:
        """Ends every wait, present and future, so that none delays a graceful stop."""
        self._ending = True
        self._changed.set()
