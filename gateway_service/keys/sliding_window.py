"""The amounts of the last minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

WINDOW_SECONDS = 60.0
GRAIN_SECONDS = 0.1
"""Amounts that come within this time of each other are one entry, so that a window has at most about 600."""


@dataclass(slots=True)
class Entry:
    """An amount that counts until the window has moved past its time."""

    began: float
    time: float
    amount: int


class SlidingWindow:
    """Sums what was added in the last 60 seconds.

    A bucket that refills would let through twice the limit within some minute; here no 60 seconds have more than the
    limit. An amount counts for at most `GRAIN_SECONDS` longer than it has to.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Starts empty. clock: a clock in seconds with any origin."""
        self._clock = clock
        self._entries: deque[Entry] = deque()
        self._used = 0

    @property
    def used(self) -> int:
        """The sum of the last 60 seconds."""
        self._forget()
        return self._used

    def add(self, amount: int) -> Entry:
        """Adds an amount now; returns the entry that it is a part of."""
        self._forget()
        now = self._clock()
        if not self._entries or now - self._entries[-1].began >= GRAIN_SECONDS:
            self._entries.append(Entry(now, now, 0))
        entry = self._entries[-1]
        entry.time = now
        entry.amount += amount
        self._used += amount
        return entry

    def take_back(self, entry: Entry, amount: int) -> None:
        """Takes back a part of what was added with an entry, unless it has stopped counting."""
        self._forget()
        if self._entries and entry.time >= self._entries[0].time:
            entry.amount -= amount
            self._used -= amount

    def seconds_until(self, most: int) -> float:
        """Returns the seconds until the sum is at most `most` if nothing is added; 0 if it is now."""
        self._forget()
        left, seconds, now = self._used, 0.0, self._clock()
        for entry in self._entries:
            if left <= most:
                break
            left -= entry.amount
            seconds = entry.time + WINDOW_SECONDS - now
        return seconds

    def _forget(self) -> None:
        end = self._clock() - WINDOW_SECONDS
        while self._entries and self._entries[0].time <= end:
            self._used -= self._entries.popleft().amount
