"""The heartbeats of drafters that announce themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

HEARTBEAT_SECONDS = 2.0
_MISSED_HEARTBEATS = 3


class Heartbeats:
    """Watches the heartbeats of drafters that announce themselves, and remembers which of them were dismissed. Used in
    the event loop only."""

    def __init__(self, on_silence: Callable[[str], None]) -> None:
        """on_silence: called with the name of a drafter whose heartbeats have stopped."""
        self._on_silence = on_silence
        self._expiry: dict[str, asyncio.TimerHandle] = {}
        # Drafters that were detached or swapped out and announce themselves on: a heartbeat does not bring them back.
        self._dismissed: set[str] = set()

    def beat(self, name: str) -> None:
        """Take a heartbeat."""
        self._cancel(name)
        loop = asyncio.get_running_loop()
        self._expiry[name] = loop.call_later(_MISSED_HEARTBEATS * HEARTBEAT_SECONDS, self._expire, name)

    def stop(self, name: str) -> None:
        """Expect no heartbeats of a drafter that has left; it may come back."""
        self._cancel(name)
        self._dismissed.discard(name)

    def dismiss(self, name: str) -> None:
        """Dismiss a drafter: heartbeats that still come do not bring it back."""
        if name in self._expiry:
            self._dismissed.add(name)
            self.beat(name)

    def welcome(self, name: str) -> None:
        """Take a drafter back that was dismissed."""
        self._dismissed.discard(name)

    def is_dismissed(self, name: str) -> bool:
        """Whether a drafter that announces itself was dismissed."""
        return name in self._dismissed

    def shut_down(self) -> None:
        """Expect no heartbeats any longer."""
        for name in list(self._expiry):
            self._cancel(name)

    def _cancel(self, name: str) -> None:
        timer = self._expiry.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _expire(self, name: str) -> None:
        self._expiry.pop(name, None)
        self._dismissed.discard(name)
        self._on_silence(name)
