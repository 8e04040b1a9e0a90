"""Background tasks that live as long as a service."""

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self

from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


class BackgroundTasks:
    """Owns the tasks of a service: `async with` ends when all of them have.

    It differs from asyncio.TaskGroup in two ways. A failing task is logged and reported to `on_failure`, normally
    `Shutdown.fail`, instead of cancelling everything immediately, so that the service still drains. And leaving the
    `async with` cancels the remaining tasks, because they never end by themselves. Failures are raised then: one as it
    is, several as an ExceptionGroup. Use TaskGroup for work that has an end.
    """

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self._on_failure = on_failure
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._closed = False

    def spawn(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        """Starts a task, which may be cancelled on its own. Raises RuntimeError after the `async with` was left."""
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"cannot start {name!r}: the background tasks have ended")
        # A context of its own keeps the fields of the call that started the task out of the task's log lines.
        task = asyncio.create_task(coroutine, name=name, context=contextvars.Context())
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("background task failed", task=task.get_name(), exc_info=error)
            self._failures.append(error)
            self._on_failure(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closed = True
        for task in tuple(self._tasks):
            task.cancel()
        while self._tasks:  # until the callbacks have run too
            await asyncio.wait(tuple(self._tasks))
        if error is not None or not self._failures:
            return  # the body's own error propagates; other failures have been logged
        if len(self._failures) == 1:
            raise self._failures[0]
        raise BaseExceptionGroup("background tasks failed", self._failures)
