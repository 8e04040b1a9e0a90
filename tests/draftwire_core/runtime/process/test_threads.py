"""Calls that take long and cannot be interrupted."""

import asyncio
import threading

import pytest

from draftwire_core.runtime.process.lifecycle import Shutdown
from draftwire_core.runtime.process.threads import call_in_thread
from tests.harness.waiting import PATIENCE


async def test_the_result_and_the_fault_come_back() -> None:
    shutdown = Shutdown()
    assert await call_in_thread(threading.current_thread, name="long", shutdown=shutdown) is not threading.main_thread()

    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(KeyError):
        await call_in_thread(lambda: fail(KeyError("k")), name="long", shutdown=shutdown)
    with pytest.raises(RuntimeError, match="SystemExit"):  # SystemExit itself would end the event loop
        await call_in_thread(lambda: fail(SystemExit(3)), name="long", shutdown=shutdown)


async def test_whoever_gives_up_leaves_the_thread_behind() -> None:
    shutdown, let = Shutdown(), threading.Event()
    calling = asyncio.create_task(call_in_thread(lambda: let.wait(PATIENCE), name="long", shutdown=shutdown))
    await asyncio.sleep(0)
    [thread] = shutdown.left_behind
    calling.cancel()
    await asyncio.wait({calling})
    assert shutdown.left_behind == [thread]
    let.set()
    await asyncio.to_thread(thread.join, PATIENCE)
    assert shutdown.left_behind == []
