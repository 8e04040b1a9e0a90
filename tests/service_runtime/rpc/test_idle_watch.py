"""Giving up on a silent peer."""

import asyncio
import time

import grpc
import pytest

from service_runtime.errors import ServiceError
from service_runtime.rpc import idle_watch
from service_runtime.rpc.idle_watch import IdleWatch
from tests.harness.waiting import PATIENCE


async def test_silence_ends_the_wait() -> None:
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ServiceError) as caught:
            await IdleWatch(0.05).run()
    assert (caught.value.code, caught.value.reason_name) == (grpc.StatusCode.DEADLINE_EXCEEDED, "IDLE")


async def test_whoever_is_heard_is_kept() -> None:
    watch = IdleWatch(1.0)
    running = asyncio.create_task(watch.run())
    for _ in range(25):
        watch.heard()
        await asyncio.sleep(0.1)
    assert not running.done()
    running.cancel()


async def test_zero_watches_nothing() -> None:
    await IdleWatch(0).run()


async def test_a_process_that_was_held_up_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that arrived meanwhile have not been read yet."""
    monkeypatch.setattr(idle_watch, "_LATE_SECONDS", 0.2)
    watch = IdleWatch(0.5)
    running = asyncio.create_task(watch.run())
    await asyncio.sleep(0)
    time.sleep(1.0)  # noqa: ASYNC251 - blocks the whole loop
    await asyncio.sleep(0.1)
    assert not running.done()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(ServiceError):
            await running
