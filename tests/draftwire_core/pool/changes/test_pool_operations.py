"""Changes of the pool that outlive the calls that requested them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from draftwire_core.pool.changes import pool_operations
from draftwire_core.pool.changes.pool_operations import PoolOperations
from draftwire_core.runtime.errors import ServiceError, at_capacity
from draftwire_core.runtime.process.tasks import BackgroundTasks


@pytest.fixture
async def operations() -> AsyncIterator[PoolOperations]:
    failures: list[BaseException] = []
    async with BackgroundTasks(failures.append) as tasks:
        yield PoolOperations(tasks)
    assert not failures


class Work:
    """Counts how often it starts, and ends when it may."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> str:
        self.begun += 1
        await self.may_end.wait()
        return "done"


async def test_it_outlives_its_caller_and_others_join(operations: PoolOperations) -> None:
    work = Work()
    first = asyncio.create_task(operations.run(("swap", "a"), ["a"], work))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(operations.run(("swap", "a"), ["a"], work))
    await asyncio.wait({first})
    work.may_end.set()
    async with asyncio.timeout(30):
        assert await second == "done"
    assert work.begun == 1


async def test_another_one_on_the_same_drafter_is_refused(operations: PoolOperations) -> None:
    work = Work()
    running = operations.start(("swap", "a", "b"), ["a", "b"], work)
    for drafter in ("a", "b"):
        with pytest.raises(ServiceError) as caught:
            operations.start(("detach", drafter), [drafter], work)
        assert caught.value.reason_name == "BUSY"
        assert "swap a b" in caught.value.message
    other = operations.start(("detach", "c"), ["c"], work)
    work.may_end.set()
    async with asyncio.timeout(30):
        await operations.wait_until_free("a")
        assert await operations.result(running) == await operations.result(other) == "done"
    operations.check_free(["a", "b", "c"])


async def test_what_is_remembered_is_bounded(operations: PoolOperations, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_operations, "_REMEMBERED", 3)

    async def work() -> None:
        pass

    for index in range(10):
        await operations.result(operations.start(("swap", index), [], work), f"id {index}")
    known = [index for index in range(10) if operations.known(("swap", index), f"id {index}") is not None]
    assert known == [7, 8, 9]


async def test_one_that_failed_is_not_remembered(operations: PoolOperations) -> None:
    async def work() -> None:
        raise at_capacity("full", 1.0)

    with pytest.raises(ServiceError):
        await operations.result(operations.start(("swap",), ["a"], work), "id")
    assert operations.known(("swap",), "id") is None
    operations.check_free(["a"])


async def test_the_end_of_the_service_ends_it_and_its_callers() -> None:
    failures: list[BaseException] = []
    async with BackgroundTasks(failures.append) as tasks:
        waiting = asyncio.create_task(PoolOperations(tasks).run(("swap",), ["a"], Work()))
        await asyncio.sleep(0.01)
    with pytest.raises(ServiceError) as caught:
        await waiting
    assert caught.value.reason_name == "SHUTTING_DOWN"
    assert not failures
