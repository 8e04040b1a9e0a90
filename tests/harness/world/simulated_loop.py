"""An event loop whose time a test advances, and an engine thread whose turns a test triggers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from draftwire_core.runtime.rpc.channel import Backoff
from draftwire_core.runtime.threads.engine_thread import EngineThread

_MOST_ROUNDS = 10_000
"""Rounds of callbacks after which a loop that still has some is assumed to run forever."""


class SimulatedLoop(asyncio.SelectorEventLoop):
    """asyncio's event loop, run by hand: nothing in it depends on the machine's clock."""

    def __init__(self) -> None:
        self._seconds = 0.0
        super().__init__()

    def time(self) -> float:
        """Returns the simulated seconds that have passed."""
        return self._seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Runs the function in the loop: a thread would take its own time."""

        async def run() -> Any:
            return func(*args)

        return self.create_task(run())

    def settle(self) -> None:
        """Runs callbacks until none is ready."""
        for _ in range(_MOST_ROUNDS):
            self.call_soon(self.stop)
            self.run_forever()
            if not self._ready:  # type: ignore[attr-defined]
                return
        raise AssertionError("the event loop never comes to rest")

    def advance(self, seconds: float) -> None:
        """Advances time; timers fire in order."""
        end = self._seconds + seconds
        self.settle()
        while self._scheduled and self._scheduled[0].when() <= end:  # type: ignore[attr-defined]
            self._seconds = max(self._seconds, self._scheduled[0].when())  # type: ignore[attr-defined]
            self.settle()
        self._seconds = end
        self.settle()


class SteppedThread(EngineThread):
    """An EngineThread without a thread: `turn` does in the event loop what the thread does between two waits."""

    made: list[SteppedThread]

    def __init__(self, work: Callable[[], float | None], *, name: str, **options: Any) -> None:
        super().__init__(work, name=name, **options)
        self.made.append(self)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        self._stopping = True

    @property
    def idle(self) -> bool:
        """Whether no command waits."""
        return not self._commands

    def listen(self) -> None:
        """Runs the posted commands."""
        self._take(0.0)

    def turn(self) -> None:
        """Runs the posted commands, then one unit of work."""
        if self._take(0.0):
            self._work()


@contextmanager
def stepped_threads() -> Iterator[list[SteppedThread]]:
    """Gives services that start meanwhile stepped threads, which are listed, and removes the randomness of back-off."""
    made: list[SteppedThread] = []
    plain = Backoff.__init__

    def without_chance(self: Backoff, initial_seconds: float, max_seconds: float, rng: Any = None) -> None:
        plain(self, initial_seconds, max_seconds, random.Random(0))

    with (
        mock.patch.object(SteppedThread, "made", made, create=True),
        mock.patch("verifier_service.step_loop.EngineThread", SteppedThread),
        mock.patch("drafter_service.conversation.draft_loop.EngineThread", SteppedThread),
        mock.patch.object(Backoff, "__init__", without_chance),
    ):
        yield made
