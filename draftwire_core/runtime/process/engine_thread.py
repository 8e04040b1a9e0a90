"""The single thread that runs a model, and its interface to the event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

ResultT = TypeVar("ResultT")


class TooManyCommands(Exception):
    """The thread is too far behind: its command queue is full."""


class ThreadEnded(Exception):
    """The thread has ended or is ending, and no longer answers."""


class EngineThread:
    """Runs `work` repeatedly, and between two runs the posted commands, in order.

    `work` does one unit, for example a forward pass, and returns how long to wait for a command before the next: 0
    continues immediately, None waits until a command comes. An exception in `work` or in a posted command ends the
    thread and is reported to `on_failure` in the event loop. Results go back to the loop by
    `asyncio.AbstractEventLoop.call_soon_threadsafe`.
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
        """Starts the thread; called in the event loop that receives its results."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def post(self, command: Callable[[], None], *, bounded: bool = True) -> None:
        """Queues `command` to run in the thread. Any thread may call. Raises TooManyCommands; does nothing after stop.

        bounded: False for a command that must not be lost and that no peer can multiply, such as freeing a sequence.
        """
        with self._changed:
            if self._stopping:
                return
            if bounded and len(self._commands) >= self._max_commands:
                raise TooManyCommands(f"{self._max_commands} commands are queued already")
            self._commands.append(command)
            self._changed.notify()

    async def call(self, function: Callable[[], ResultT]) -> ResultT:
        """Runs `function` in the thread and returns its result, or raises its exception.

        Callers need a deadline, because a thread that hangs never answers. Raises ThreadEnded and TooManyCommands.
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
        """Ends the thread after its current unit and waits for it. Queued commands are dropped."""
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
        """Runs the posted commands, first waiting up to `wait` seconds for one; returns False if the thread is to
        end."""
        with self._changed:
            if not self._commands and not self._stopping and wait != 0:
                self._changed.wait(wait)
            if self._stopping:
                return False
            commands, self._commands = self._commands, deque()
        for command in commands:
            command()
        return True
