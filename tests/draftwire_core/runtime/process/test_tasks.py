import asyncio
from typing import Any

import pytest

from draftwire_core.runtime.process.tasks import BackgroundTasks


async def forever(ended: list[str], name: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.append(name)


async def fail(message: str) -> None:
    raise RuntimeError(message)


async def test_leaving_ends_every_task() -> None:
    ended: list[str] = []
    async with BackgroundTasks(on_failure=ended.append) as tasks:  # type: ignore[arg-type]
        for name in "ab":
            tasks.spawn(forever(ended, name), name=name)
        await asyncio.sleep(0)
    assert sorted(ended) == ["a", "b"]
    with pytest.raises(RuntimeError, match="have ended"):
        tasks.spawn(forever(ended, "c"), name="c")


async def test_a_failure_is_reported_and_raised_while_the_others_go_on() -> None:
    failed = asyncio.Event()
    failures: list[BaseException] = []
    ended: list[str] = []

    def on_failure(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    with pytest.raises(RuntimeError, match="broken"):
        async with BackgroundTasks(on_failure) as tasks:
            tasks.spawn(forever(ended, "other"), name="other")
            tasks.spawn(fail("broken"), name="failing")
            await failed.wait()
            assert ended == []
    assert [str(error) for error in failures] == ["broken"]
    assert ended == ["other"]


async def test_several_failures_are_raised_together() -> None:
    failures: list[Any] = []
    with pytest.raises(ExceptionGroup) as raised:
        async with BackgroundTasks(failures.append) as tasks:
            waiting = [tasks.spawn(fail(name), name=name) for name in "ab"]
            await asyncio.wait(waiting)
    assert [str(error) for error in raised.value.exceptions] == ["a", "b"]


async def test_cancelling_one_task_is_no_failure() -> None:
    failures: list[Any] = []
    ended: list[str] = []
    async with BackgroundTasks(failures.append) as tasks:
        task = tasks.spawn(forever(ended, "a"), name="a")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    assert (failures, ended) == ([], ["a"])


async def test_the_bodys_own_error_goes_on() -> None:
    with pytest.raises(KeyError):
        async with BackgroundTasks(lambda error: None) as tasks:
            await asyncio.wait({tasks.spawn(fail("beside"), name="failing")})
            raise KeyError("body")
