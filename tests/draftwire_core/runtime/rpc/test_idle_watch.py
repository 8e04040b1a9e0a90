"""Giving up on a silent peer."""

import asyncio

import grpc
import pytest

from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc import idle_watch
from draftwire_core.runtime.rpc.idle_watch import IdleWatch
from tests.harness.simulated_time import SimulatedTime


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> SimulatedTime:
    return SimulatedTime.of(idle_watch, monkeypatch)


async def test_silence_ends_the_wait(time: SimulatedTime) -> None:
    running = asyncio.create_task(IdleWatch(5.0).run())
    await time.advance(4.9)
    assert not running.done()
    await time.advance(0.2)
    with pytest.raises(ServiceError) as caught:
        running.result()
    assert (caught.value.code, caught.value.reason_name) == (grpc.StatusCode.DEADLINE_EXCEEDED, "IDLE")


async def test_whoever_is_heard_is_kept(time: SimulatedTime) -> None:
    watch = IdleWatch(1.0)
    running = asyncio.create_task(watch.run())
    for _ in range(25):
        await time.advance(0.9)
        assert not running.done()
        watch.heard()
    await time.advance(0.9)
    assert not running.done()
    await time.advance(0.2)
    with pytest.raises(ServiceError):
        running.result()


async def test_zero_watches_nothing() -> None:
    await IdleWatch(0).run()


async def test_a_process_that_was_held_up_blames_nobody(time: SimulatedTime) -> None:
    """Messages that arrived meanwhile have not been read yet."""
    running = asyncio.create_task(IdleWatch(5.0).run())
    await time.advance(5.0 + 1.1)
    assert not running.done()
    await time.advance(4.9)
    assert not running.done()
    await time.advance(0.2)
    with pytest.raises(ServiceError):
        running.result()
