"""Commands for the engine's thread, and how many of them may wait."""

import asyncio
import threading

import pytest

from service_runtime.engine_thread import EngineThread, TooManyCommands


async def test_what_must_not_be_lost_is_taken_beyond_the_bound() -> None:
    held = threading.Event()
    done: list[str] = []
    failures: list[BaseException] = []
    thread = EngineThread(lambda: None, name="test", on_failure=failures.append, max_commands=1)
    thread.start()

    def hold() -> None:
        held.wait(30)

    thread.post(hold)
    async with asyncio.timeout(30):
        while thread._commands:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    thread.post(lambda: done.append("waits"))
    with pytest.raises(TooManyCommands):
        thread.post(lambda: done.append("refused"))
    thread.post(lambda: done.append("must not be lost"), bounded=False)
    held.set()
    async with asyncio.timeout(30):
        while len(done) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await thread.stop()
    assert done == ["waits", "must not be lost"]
    assert not failures
