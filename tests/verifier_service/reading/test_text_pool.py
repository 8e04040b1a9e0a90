"""Texts are processed in turn: small ones do not wait for large ones, and abandoned ones are skipped."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from draftwire_core.runtime.errors import ServiceError
from tests.harness.waiting import PATIENCE
from verifier_service.reading.text_pool import LANES, LaneLimits, TextPool

SMALL, MIDDLE, LARGE = 64, LANES[0].largest + 1, LANES[1].largest + 1


class Held:
    """A text whose processing ends when a test releases it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self) -> None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE)


@pytest.fixture
def pool() -> Iterator[TextPool]:
    made = TextPool()
    yield made
    made.close()


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.go_on.set()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def ended(*tasks: asyncio.Task[None]) -> None:
    async with asyncio.timeout(PATIENCE):
        await asyncio.wait(tasks)


async def test_small_texts_do_not_wait_for_large_ones(pool: TextPool, held: Held) -> None:
    large = [asyncio.create_task(pool.run(held, int(LARGE), "a")) for _ in range(8)]
    async with asyncio.timeout(PATIENCE):
        assert await pool.run(lambda: "read", SMALL, "a") == "read"
        assert await pool.run(lambda: "read", int(MIDDLE), "a") == "read"
    assert not any(task.done() for task in large)
    held.go_on.set()
    await ended(*large)


async def test_a_waiting_text_whose_caller_is_gone_is_never_read(pool: TextPool, held: Held) -> None:
    read: list[str] = []
    first = asyncio.create_task(pool.run(held, SMALL))
    second = asyncio.create_task(pool.run(partial(read.append, "second"), SMALL))
    third = asyncio.create_task(pool.run(partial(read.append, "third"), SMALL))
    await until(lambda: pool.held == 3 * SMALL)
    second.cancel()
    await ended(second)
    assert pool.held == 2 * SMALL, "its room is free at once"
    held.go_on.set()
    await ended(first, third)
    assert read == ["third"]
    assert pool.held == 0


async def test_what_runs_keeps_its_room_though_its_caller_is_gone(pool: TextPool, held: Held) -> None:
    task = asyncio.create_task(pool.run(held, SMALL))
    await until(held.begun.is_set)
    task.cancel()
    await ended(task)
    assert pool.held == SMALL
    held.go_on.set()
    await until(lambda: pool.held == 0)
    assert await pool.run(lambda: 5, SMALL) == 5


async def test_peers_take_turns(pool: TextPool, held: Held) -> None:
    read: list[str] = []
    tasks = [asyncio.create_task(pool.run(held, SMALL, "a"))]
    for name in ("a1", "a2", "a3", "b1", "b2", "c1"):
        tasks.append(asyncio.create_task(pool.run(partial(read.append, name), SMALL, name[0])))
    await until(lambda: pool.held == 7 * SMALL)
    held.go_on.set()
    await ended(*tasks)
    assert read == ["b1", "c1", "a1", "b2", "a2", "a3"]


async def test_a_peer_takes_half_of_the_room_and_others_find_some(held: Held) -> None:
    pool = TextPool(lanes=(LaneLimits(float("inf"), 1000),))
    tasks = [asyncio.create_task(pool.run(held, 200, "a")) for _ in range(2)]
    await until(lambda: pool.held == 400)
    with pytest.raises(ServiceError) as caught:
        await pool.run(lambda: None, 300, "a")
    assert (caught.value.code.name, caught.value.reason_name) == ("RESOURCE_EXHAUSTED", "AT_CAPACITY")
    assert caught.value.retry_after_seconds
    tasks.append(asyncio.create_task(pool.run(lambda: None, 300, "b")))
    await until(lambda: pool.held == 700)
    with pytest.raises(ServiceError, match="300 of them from b"):
        await pool.run(lambda: None, 100, "b")
    held.go_on.set()
    await ended(*tasks)
    pool.close()


async def test_a_text_larger_than_the_room_is_read_alone() -> None:
    pool = TextPool(lanes=(LaneLimits(float("inf"), 1000),))
    assert await pool.run(lambda: "read", 10_000) == "read"
    pool.close()


async def test_many_empty_texts_have_a_size_too(held: Held) -> None:
    pool = TextPool(lanes=(LaneLimits(float("inf"), 1000),))
    task = asyncio.create_task(pool.run(held, 0))
    await until(lambda: pool.held > 0)
    held.go_on.set()
    await ended(task)
    assert pool.held == 0
    pool.close()


async def test_a_text_does_not_wait_for_ever(held: Held) -> None:
    pool = TextPool(wait_seconds=0.05)
    tasks = [asyncio.create_task(pool.run(held, SMALL, "a"))]
    await until(held.begun.is_set)
    with pytest.raises(ServiceError, match=r"not read within 0\.05 seconds") as caught:
        await pool.run(lambda: None, SMALL, "b")
    assert (caught.value.code.name, caught.value.reason_name) == ("RESOURCE_EXHAUSTED", "AT_CAPACITY")
    assert pool.held == SMALL, "its room is free"
    held.go_on.set()
    await ended(*tasks)
    assert tasks[0].exception() is None, "what has begun is not given up"
    pool.close()


async def test_what_reading_raises_is_raised(pool: TextPool) -> None:
    def fail() -> None:
        raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        await pool.run(fail, SMALL)
    assert pool.held == 0


async def test_what_was_read_is_told() -> None:
    sizes: list[int] = []
    pool = TextPool(sizes.append)
    await pool.run(lambda: None, SMALL)
    await pool.run(lambda: None, int(LARGE))
    assert sizes == [SMALL, LARGE]
    pool.close()


async def test_a_closed_pool_waits_for_nobody(held: Held) -> None:
    pool = TextPool()
    task = asyncio.create_task(pool.run(held, SMALL))
    await until(held.begun.is_set)
    pool.close()
    await ended(task)
    assert task.cancelled()
    assert pool.held == 0
