"""Blocking work in threads next to the event loop, and the interpreter that all threads share."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from typing import TypeVar

from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.startup_error import startup_errors

Part = TypeVar("Part")
ResultT = TypeVar("ResultT")


@asynccontextmanager
async def started(part: AbstractContextManager[Part], *kinds: type[Exception]) -> AsyncIterator[Part]:
    """Enters and leaves a context manager in worker threads.

    Raises StartupError for errors of these kinds on entering.
    """
    with startup_errors(*kinds):
        value = await asyncio.to_thread(part.__enter__)
    try:
        yield value
    finally:
        await asyncio.to_thread(part.__exit__, None, None, None)


async def call_in_thread(function: Callable[[], ResultT], *, name: str, shutdown: Shutdown) -> ResultT:
    """Runs `function` in a thread and returns its result, or raises its exception.

    If the waiter is cancelled, the thread continues, its result is dropped, and the process may end without it.
    """
    loop = asyncio.get_running_loop()
    finished: asyncio.Future[ResultT] = loop.create_future()

    def settle(result: ResultT | None, error: Exception | None) -> None:
        if finished.done():
            return
        if error is not None:
            finished.set_exception(error)
        else:
            finished.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: ResultT | None = None
        failure: Exception | None = None
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - raised again where the result is awaited
            failure = error
        except BaseException as error:  # noqa: BLE001 - SystemExit, say, of foreign code: it must not end the loop
            failure = RuntimeError(f"{name}: {error!r}")
            failure.__cause__ = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failure)

    thread = threading.Thread(target=run, name=name, daemon=True)
    shutdown.leave_behind(thread)
    thread.start()
    return await finished


_SWITCH_SECONDS = 0.0005


def share_interpreter(device: str) -> None:
    """Lets threads take the interpreter from each other ten times as often as by default, for a model on a GPU.

    After each wait for the device, the model's thread needs the interpreter again. While the event loop computes, it
    gets it only after the switch interval, which is 5 ms by default: as long as a whole step. A step on a CPU waits
    less often.
    """
    if device != "cpu":
        sys.setswitchinterval(_SWITCH_SECONDS)
