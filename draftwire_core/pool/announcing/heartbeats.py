"""The heartbeats of drafters that announce themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

HEARTBEAT_SECONDS = 2.0
_MISSED_HEARTBEATS = 3


class Heartbeats:
    """Watches the heartbeats of drafters that announce themselves, and remembers the dismissed ones. Used in the event
    loop only."""

    def __init__(self, on_silence: Callable[[str], None]) -> None:
        """on_silence: called with the name of a drafter whose heartbeats have stopped."""
        self._on_silence = on_silence
        self._expiry: dict[str, asyncio.TimerHandle] = {}
        # Drafters that were detached or swapped out but still announce themselves, and who announced each.
        self._dismissed: dict[str, str | None] = {}

    def beat(self, name: str) -> None:
        """Takes a heartbeat."""
        self._cancel(name)
        loop = asyncio.get_running_loop()
        self._expiry[name] = loop.call_later(_MISSED_HEARTBEATS * HEARTBEAT_SECONDS, self._expire, name)

    def stop(self, name: str) -> None:
        """Stops expecting heartbeats of a drafter that has left; it may come back."""
        self._cancel(name)
        self._dismissed.pop(name, None)

    def dismiss(self, name: str, announcer: str | None) -> None:
        """Dismisses a drafter: later heartbeats do not bring it back. announcer: the name of the token that announced
        it."""
        if name in self._expiry:
            self._dismissed[name] = announcer
            self.beat(name)

    def welcome(self, name: str) -> str | None:
        """Lifts the dismissal of a drafter, which still announces itself. Returns as `dismissed_announcer`."""
        return self._dismissed.pop(name, None)

    def is_dismissed(self, name: str) -> bool:
        """Whether a drafter was dismissed and still announces itself."""
        return name in self._dismissed

    def dismissed_announcer(self, name: str) -> str | None:
        """The name of the token that announced a dismissed drafter; None if none was required, or for any other."""
        return self._dismissed.get(name)

    def shut_down(self) -> None:
        """Stops expecting heartbeats of all drafters."""
        for name in list(self._expiry):
            self._cancel(name)

    def _cancel(self, name: str) -> None:
        timer = self._expiry.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, name: str) -> None:
        self._expiry.pop(name, None)
        self._dismissed.pop(name, None)
        self._on_silence(name)
