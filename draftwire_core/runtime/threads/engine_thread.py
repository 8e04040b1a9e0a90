"""The single thread that runs a model, and its interface to the event loop."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from draftwire_core.runtime.threads.command_thread import CommandThread

ResultT = TypeVar("ResultT")


class ThreadEnded(Exception):
    """The thread has ended or is ending, and no longer answers."""


class EngineThread(CommandThread):
    """A thread whose results, failure and end reach the event loop that started it.

    An exception in `work` or in a posted command is reported to `on_failure` in the event loop. Results go back to the
    loop by `asyncio.AbstractEventLoop.call_soon_threadsafe`.
    """

    def __init__(
        self,
        work: Callable[[], float | None],
        *,
        name: str,
        on_failure: Callable[[BaseException], None],
        max_commands: int = 65536,
    ) -> None:
        super().__init__(work, name=name, on_end=self._report_end, max_commands=max_commands)
        self._on_failure = on_failure
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Starts the thread; called in the event loop that receives its results."""
        self._loop = asyncio.get_running_loop()
        super().start()

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
        self.ask_to_stop()
        if self._loop is not None:
            await self._ended.wait()
            self.join()

    def _report_end(self, error: BaseException | None) -> None:
        assert self._loop is not None
        if error is not None:
            self._loop.call_soon_threadsafe(self._on_failure, error)
        self._loop.call_soon_threadsafe(self._ended.set)
