"""Commands for an engine thread: how many may wait, and calls to a thread that ends."""

import asyncio
import threading

import pytest

from draftwire_core.runtime.threads.command_thread import TooManyCommands
from draftwire_core.runtime.threads.engine_thread import EngineThread, ThreadEnded
from tests.harness.waiting import PATIENCE


async def test_a_call_that_waits_when_the_thread_ends_is_told_so() -> None:
    let = threading.Event()

    def work() -> float | None:
        assert let.wait(PATIENCE)
        return None

    thread = EngineThread(work, name="test", on_failure=lambda error: None)
    thread.start()
    asking = asyncio.create_task(thread.call(lambda: 1))
    await asyncio.sleep(0)
    stopping = asyncio.create_task(thread.stop())
    await asyncio.sleep(0)
    let.set()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ThreadEnded):
            await asking
        await stopping
        with pytest.raises(ThreadEnded):
            await thread.call(lambda: 2)


async def test_a_call_is_answered_between_two_units() -> None:
    thread = EngineThread(lambda: None, name="test", on_failure=lambda error: None)
    thread.start()
    async with asyncio.timeout(PATIENCE):
        assert await thread.call(lambda: 3) == 3
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 // 0)
        await thread.stop()


async def test_what_must_not_be_lost_is_taken_beyond_the_bound() -> None:
    held = threading.Event()
    done: list[str] = []
    failures: list[BaseException] = []
    thread = EngineThread(lambda: None, name="test", on_failure=failures.append, max_commands=1)
    thread.start()

    def hold() -> None:
        held.wait(PATIENCE)

    thread.post(hold)
    async with asyncio.timeout(PATIENCE):
        while thread._commands:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    thread.post(lambda: done.append("waits"))
    with pytest.raises(TooManyCommands):
        thread.post(lambda: done.append("refused"))
    thread.post(lambda: done.append("must not be lost"), bounded=False)
    held.set()
    async with asyncio.timeout(PATIENCE):
        while len(done) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await thread.stop()
    assert done == ["waits", "must not be lost"]
    assert not failures
