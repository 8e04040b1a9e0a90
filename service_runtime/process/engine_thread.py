"""The one thread that runs a model, and how the event loop talks to it."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class TooManyCommands(Exception):
    """The thread is further behind than the bound allows."""


class ThreadEnded(Exception):
    """The thread has ended, or ends now, and answers no more."""


class EngineThread:
    """Runs `work` over and over, and between two runs the commands that were posted, in order.

    `work` does one unit, say a forward pass, and returns how long to wait for a command before the next: 0 goes on at
    once, None waits until a command comes. What `work` or a posted command raises ends the thread and is reported to
    `on_failure` in the event loop. Results go back to the loop by `asyncio.AbstractEventLoop.call_soon_threadsafe`.
    """

    def __init__(
        self,
        work: Callable[[], float | None],
        *,
        name: str,
        on_failure: Callable[[BaseException], None],
        max_commands: int = 65536,
    ) -> None:
        self._work = work
        self._on_failure = on_failure
        self._max_commands = max_commands
        self._commands: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._stopping = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; to be called in the event loop that its results go to."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def post(self, command: Callable[[], None], *, bounded: bool = True) -> None:
        """Have `command` run in the thread. Any thread may call. Raises TooManyCommands; does nothing after stop.

        bounded: False for a command that must not be lost and that no peer can multiply, such as freeing a sequence.
        """
        with self._changed:
            if self._stopping:
                return
            if bounded and len(self._commands) >= self._max_commands:
                raise TooManyCommands(f"{self._max_commands} commands wait already")
            self._commands.append(command)
            self._changed.notify()

    async def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Run `function` in the thread and return its result, or raise what it raised.

        A thread that hangs answers nobody: give it a deadline. Raises ThreadEnded, and TooManyCommands.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ResultT] = loop.create_future()

        def settle(result: ResultT | None, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        def command() -> None:
            try:
                result = function()
            except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
                loop.call_soon_threadsafe(settle, None, error)
            else:
                loop.call_soon_threadsafe(settle, result, None)

        self.post(command)
        ended = loop.create_task(self._ended.wait())
        either: set[asyncio.Future[Any]] = {future, ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not future.done():
            raise ThreadEnded
        return future.result()

    async def stop(self) -> None:
        """End the thread after the unit it is at, and wait for it. Commands that wait are dropped."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._loop is not None:
            await self._ended.wait()
            self._thread.join()

    def _run(self) -> None:
        assert self._loop is not None
        try:
            wait: float | None = 0.0
            while self._take(wait):
                wait = self._work()
        except BaseException as error:  # noqa: BLE001 - the thread's end; reported in the loop
            self._loop.call_soon_threadsafe(self._on_failure, error)
        finally:
            self._loop.call_soon_threadsafe(self._ended.set)

    def _take(self, wait: float | None) -> bool:
        """Run the posted commands, waiting for one as long as told; False when the thread is to end."""
        with self._changed:
            if not self._commands and not self._stopping and wait != 0:
                self._changed.wait(wait)
            if self._stopping:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        return True
