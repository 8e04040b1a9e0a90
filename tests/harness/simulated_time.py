"""Time that a test advances, for a module that sleeps."""

from __future__ import annotations

import asyncio
from types import ModuleType

import pytest

_TURNS = 5
"""Turns of the event loop in which whoever has slept gets to the next sleep."""


class SimulatedTime:
    """A stand-in for `time` and `asyncio` in a module that looks at the clock and sleeps."""

    def __init__(self) -> None:
        self._now = 1000.0
        self._sleeping: list[tuple[float, asyncio.Event]] = []

    @classmethod
    def of(cls, module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
        """Replaces a module's `time` and `asyncio`."""
        made = cls()
        monkeypatch.setattr(module, "time", made)
        monkeypatch.setattr(module, "asyncio", made)
        return made

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        over = asyncio.Event()
        self._sleeping.append((self._now + seconds, over))
        await over.wait()

    async def advance(self, seconds: float) -> None:
        """Lets time pass at once, as if the process were held up meanwhile, and then those run whose sleep is over."""
        await self._settle()
        self._now += seconds
        for due, over in self._sleeping:
            if due <= self._now:
                over.set()
        self._sleeping = [(due, over) for due, over in self._sleeping if not over.is_set()]
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
