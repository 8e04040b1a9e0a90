"""Operations: long-running changes to the pool, which outlive the calls that started them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.runtime.errors import ServiceError, failed_precondition, invalid_field, shutting_down
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.tasks import BackgroundTasks

log = get_logger(__name__)

ResultT = TypeVar("ResultT")
What = tuple[object, ...]
"""Key of an operation: its kind and its drafters. Equal keys are the same operation."""

_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, running or finished."""

    what: What
    drafters: frozenset[str]
    result: asyncio.Future[Any]

    def __str__(self) -> str:
        return " ".join(map(str, self.what))


class PoolOperations:
    """Runs each operation in a task of its own, one at a time per drafter. Used in the event loop only.

    A call waits for its operation; cancelling the call does not stop the operation. Another call for the same operation
    joins it while it runs; one with the same request id also gets its result afterwards.
    """

    def __init__(self, tasks: BackgroundTasks) -> None:
        self._tasks = tasks
        self._running: list[Operation] = []
        self._by_request: OrderedDict[str, Operation] = OrderedDict()

    async def run(self, what: What, drafters: Iterable[str], work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Runs an operation on some drafters, or joins it. Raises ServiceError: the operation's own, or BUSY."""
        result: ResultT = await self.result(self.known(what) or self.start(what, drafters, work))
        return result

    async def result(self, operation: Operation, request_id: str = "") -> Any:
        """Waits for an operation, which continues if the caller is cancelled. Raises the operation's ServiceError."""
        if request_id:
            self._by_request[request_id] = operation
            self._by_request.move_to_end(request_id)
            if len(self._by_request) > _REMEMBERED:
                self._by_request.popitem(last=False)
        return await asyncio.shield(operation.result)

    def known(self, what: What, request_id: str = "") -> Operation | None:
        """Returns the same operation if it is running, or if it succeeded under this request id; a failed one may be
        retried.

        Raises ServiceError (INVALID_FIELD) if the request id belongs to another operation.
        """
        operation = self._by_request.get(request_id) if request_id else None
        if operation is not None:
            if operation.what != what:
                raise invalid_field("request_id", f"{request_id!r} was used for another call: {operation}")
            if not operation.result.done() or operation.result.exception() is None:
                return operation
        return next((running for running in self._running if running.what == what), None)

    def check_free(self, drafters: Iterable[str]) -> None:
        """Raises ServiceError (BUSY) if an operation on one of the drafters is in progress."""
        for name in drafters:
            for operation in self._running:
                if name in operation.drafters:
                    raise busy(name, str(operation))

    async def wait_until_free(self, name: str) -> None:
        """Waits until no operation on a drafter is in progress."""
        while waiting := {operation.result for operation in self._running if name in operation.drafters}:
            await asyncio.wait(waiting)

    async def after(self, what: What) -> None:
        """Waits until an operation is no longer in progress."""
        while (running := self.known(what)) is not None:
            await asyncio.wait({running.result})

    def start(self, what: What, drafters: Iterable[str], work: Callable[[], Awaitable[Any]]) -> Operation:
        """Starts an operation. Raises ServiceError (BUSY)."""
        drafters = frozenset(drafters)
        self.check_free(drafters)
        result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        operation = Operation(what, drafters, result)
        self._running.append(operation)

        async def run() -> None:
            try:
                outcome = await work()
            except ServiceError as error:
                log.warning("pool operation failed", operation=str(operation), reason=error.message)
                result.set_exception(error)
            else:
                result.set_result(outcome)
            finally:
                self._running.remove(operation)
                if not result.done():  # cancelled, or a bug, which the task's owner reports
                    result.set_exception(shutting_down())
                result.exception()  # retrieved, so that asyncio does not complain when no call waits for it

        self._tasks.spawn(run(), name=f"pool operation {what[0]}")
        return operation


def busy(drafter: str, operation: str) -> ServiceError:
    """Returns FAILED_PRECONDITION: another change of the drafter is in progress."""
    return failed_precondition(ErrorReason.ERROR_REASON_BUSY, f"drafter {drafter} is busy: {operation} is under way")
