"""A drafter's announcements to all the verifiers that it was given."""

import asyncio
from collections.abc import Sequence

from drafter_service.announcement import Announcement
from drafter_service.verifier_pool import VerifierPool
from draftwire._calls.channel import AsyncChannels
from service_runtime.tasks import BackgroundTasks


class Announcements:
    """One announcement for each verifier, independent of the others: one that cannot be reached holds up none."""

    def __init__(
        self, channels: AsyncChannels, verifiers: Sequence[str], name: str | None, tasks: BackgroundTasks
    ) -> None:
        """`verifiers`: their addresses, HOST:PORT. `tasks` owns the heartbeats."""
        self._channels = channels
        self._verifiers = tuple(verifiers)
        self._name = name
        self._tasks = tasks
        self._running: dict[Announcement, asyncio.Task[None]] = {}

    def begin(self, address: str) -> None:
        """Announces the drafter at `address`, HOST:PORT, until `end`."""
        for verifier in self._verifiers:
            announcement = Announcement(VerifierPool(self._channels, verifier), verifier, address, self._name)
            self._running[announcement] = self._tasks.spawn(announcement.run(), name=f"announcement to {verifier}")

    async def end(self) -> None:
        """Ends the heartbeats and takes leave of every verifier, of all at once. Raises nothing."""
        announcements, tasks = list(self._running), list(self._running.values())
        self._running.clear()
        if not announcements:
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await asyncio.gather(*(announcement.leave() for announcement in announcements))
