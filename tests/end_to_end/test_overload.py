"""Under overload a verifier refuses some requests at once and serves the others completely."""

import asyncio
import gc
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.harness.process_usage import Usage
from draftwire import AsyncClient, AtCapacityError, Client
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import Services
from tests.harness.waiting import LONG_PATIENCE, eventually

pytestmark = pytest.mark.processes

PROMPTS = ["def fib(n):", "import os\n", "class Stack:\n", "for line in open(path):\n"]
REQUEST: dict[str, Any] = {"max_tokens": 64, "ignore_eos": True, "temperature": 0.8}
ENDLESS: dict[str, Any] = {"max_tokens": 1800, "ignore_eos": True, "temperature": 0.8, "seed": 3}
PLACES, CALLERS = 4, 16


@pytest.fixture
def busy(services: Services) -> ServiceProcess:
    """A verifier that refuses requests whose estimated wait exceeds one round of its running requests."""
    return services.verifier(
        "target", "--max-sequences", str(PLACES), "--max-waiting", "6", "--max-wait-seconds", "0.05",
        "--drafter", "local:ngram",
    )  # fmt: skip


@pytest.fixture
def client(busy: ServiceProcess) -> Iterator[Client]:
    with Client(busy.address) as made:
        yield made


def assert_idle(client: Client) -> None:
    def held() -> tuple[int, int, int]:
        engine = client.model_info().engine
        return engine.running_sequences, engine.waiting_requests, engine.used_slots

    eventually(lambda: held() == (0, 0, 0), "nothing is held")


def usage(service: ServiceProcess) -> Usage:
    found = Usage.of(service.pid)
    assert found is not None
    return found


def test_who_leaves_the_queue_makes_room_at_once(busy: ServiceProcess, client: Client) -> None:
    running = [client.stream(PROMPTS[0], **ENDLESS) for _ in range(PLACES)]
    for stream in running:
        next(stream)

    def waiting(count: int) -> Callable[[], bool]:
        return lambda: client.model_info().engine.waiting_requests == count

    # No request has ended yet, so the wait is unknown: only --max-waiting applies.
    queued = [client.stream(PROMPTS[1], **ENDLESS) for _ in range(6)]
    eventually(waiting(6), "six wait")
    with pytest.raises(AtCapacityError) as caught:
        next(client.stream(PROMPTS[1], **ENDLESS))
    assert caught.value.retry_after_seconds
    queued[2].close()
    eventually(waiting(5), "one has left")
    assert client.model_info().engine.running_sequences == PLACES
    for stream in [*queued, *running]:
        stream.close()
    assert_idle(client)


def test_who_does_not_read_holds_up_nobody(verifier: ServiceProcess) -> None:
    with Client(verifier.address) as client:
        expected = client.generate(PROMPTS[0], seed=5, **REQUEST).token_ids
        slow = client.stream(PROMPTS[0], **ENDLESS | {"seed": 5, "max_tokens": 200})
        first = next(slow).token_ids
        for _ in range(2):
            assert client.generate(PROMPTS[0], seed=5, **REQUEST).token_ids == expected
        assert_idle(client)  # generation does not depend on the reader
        whole = first + [token for chunk in slow for token in chunk.token_ids]
        assert len(whole) == 200 and whole[:64] == expected


@pytest.mark.slow
class TestManyCallers:
    async def test_four_times_what_there_is_room_for(self, busy: ServiceProcess, client: Client) -> None:
        expected = [client.generate(prompt, seed=5, **REQUEST).token_ids for prompt in PROMPTS]
        assert_idle(client)
        served: list[int] = []
        refused: list[tuple[str, float | None, str]] = []
        """Details of the refusals. The errors would keep their frames alive, and with them the connections."""

        def seen() -> bool:
            """Whether enough requests were served and refused, some of them because of the wait."""
            enough = len(served) >= PLACES and len(refused) > CALLERS - PLACES - 6
            return enough and any("--max-wait-seconds" in message for _, _, message in refused)

        async def caller(number: int) -> None:
            async with AsyncClient(busy.address, timeout=LONG_PATIENCE) as own:
                for count in itertools.count():
                    which = (number + count) % len(PROMPTS)
                    try:
                        found = await own.generate(PROMPTS[which], seed=5, **REQUEST)
                    except AtCapacityError as error:
                        refused.append((error.reason, error.retry_after_seconds, error.message))
                        await asyncio.sleep(0.01)  # far sooner than the retry delay
                    else:
                        assert found.token_ids == expected[which]
                        served.append(which)
                    if seen():
                        return

        open_files = []
        for _ in range(2):
            served.clear()
            refused.clear()
            async with asyncio.timeout(LONG_PATIENCE), asyncio.TaskGroup() as callers:
                for number in range(CALLERS):
                    callers.create_task(caller(number))
            assert all(reason == "AT_CAPACITY" and seconds for reason, seconds, _ in refused)
            await asyncio.to_thread(assert_idle, client)
            open_files.append(usage(busy).open_files)
        # gRPC opens some files of its own on demand; a leak would keep at least one per caller.
        most = open_files[0] + CALLERS // 2
        gc.collect()  # refused calls are in reference cycles with their frames and hold connections
        await asyncio.to_thread(eventually, lambda: usage(busy).open_files < most, "connections are closed")
        assert busy.process.poll() is None
