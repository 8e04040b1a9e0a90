"""The services as in production, including their threads, under schedules of delays, broken streams and cancellations.

The exact events also depend on the threads. So these tests find faults that `test_state_machine.py`, which controls
the threads' turns, cannot.
"""

import asyncio
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from draftwire.v1 import drafter_pool_service_pb2 as pool_pb
from draftwire.v1.verifier_service_pb2 import GenerateRequest
from draftwire_core.pool.servicer import DrafterPoolServicer
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.rpc.message_stream import MessageStream
from tests.harness.services.in_process_drafter import in_process_drafter
from tests.harness.services.in_process_verifier import Handler, InProcessVerifier, in_process_verifier
from tests.harness.waiting import PATIENCE
from tests.harness.world.checkpoints import Checkpoints
from tests.harness.world.plain_reference import PlainReference
from tests.harness.world.request_choices import NAMES, PROMPTS, REQUESTS, SAMPLINGS, request_of
from tests.harness.world.world import POOL_REASONS, REQUEST_REASONS


class SlowStream(MessageStream[Any, Any]):
    """A stream on which every message is delayed."""

    def __init__(self, stream: MessageStream[Any, Any], seconds: float) -> None:
        self._stream = stream
        self._seconds = seconds

    async def read(self) -> Any:
        message = await self._stream.read()
        await asyncio.sleep(self._seconds)
        return message

    async def write(self, message: Any) -> None:
        await asyncio.sleep(self._seconds)
        await self._stream.write(message)

    async def close(self, error: ServiceError | None = None) -> None:
        await self._stream.close(error)


@dataclass(frozen=True)
class Event:
    """An event, `seconds` after the previous one."""

    seconds: float
    what: str
    name: str = ""
    other: str = ""
    request: GenerateRequest | None = None


names, requests = st.sampled_from(NAMES), REQUESTS.strategy()
pauses = st.sampled_from([0.0, 0.001, 0.01, 0.03])
events = st.one_of(
    st.builds(Event, pauses, st.just("ask"), request=requests),
    st.builds(Event, pauses, st.sampled_from(["break", "attach", "detach", "cancel"]), name=names),
    st.builds(Event, pauses, st.just("swap"), name=names, other=names),
)
schedules = st.lists(events, min_size=5, max_size=25)
delays = st.fixed_dictionaries({name: st.sampled_from([0.0, 0.0, 0.002, 0.02]) for name in NAMES})

PROMPT = PROMPTS[2]
SCHEDULES = {
    "streams that break": [
        Event(0.03, "break", "good"),
        Event(0.01, "ask", request=request_of(PROMPT, SAMPLINGS[1])),
        Event(0.03, "attach", "poor"),
        Event(0.03, "break", "poor"),
        Event(0.001, "break", "good"),
    ],
    "drafters that come and go": [
        Event(0.01, "swap", "good", "poor"),
        Event(0.001, "attach", "wild"),
        Event(0.01, "ask", request=request_of(PROMPT, drafters=2)),
        Event(0.01, "swap", "poor", "good"),
        Event(0.01, "detach", "wild"),
        Event(0.0, "detach", "good"),
        Event(0.0, "attach", "poor"),
    ],
    "requests that end early": [
        Event(0.01, "cancel"),
        Event(0.0, "ask", request=request_of(PROMPT, SAMPLINGS[2])),
        Event(0.0, "ask", request=request_of(PROMPT, max_tokens=1)),
        Event(0.01, "cancel"),
        Event(0.001, "break", "good"),
    ],
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_outputs_are_plain_whatever_the_threads_do(
    name: str, checkpoints: Checkpoints, reference: PlainReference
) -> None:
    first = [request_of(), request_of(PROMPTS[3], SAMPLINGS[1])]
    check(checkpoints, reference, SCHEDULES[name], {"good": 0.0, "poor": 0.002, "wild": 0.0}, first)


@pytest.mark.slow
class TestRandomSchedules:
    """Schedules that Hypothesis chooses."""

    @settings(
        max_examples=max(5, settings.default.max_examples // 6),  # type: ignore[union-attr]
        suppress_health_check=list(HealthCheck),
    )
    @given(schedule=schedules, delay=delays, first=st.lists(requests, min_size=1, max_size=3))
    def test_outputs_are_plain_whatever_the_threads_do(
        self,
        checkpoints: Checkpoints,
        reference: PlainReference,
        schedule: list[Event],
        delay: dict[str, float],
        first: list[GenerateRequest],
    ) -> None:
        check(checkpoints, reference, schedule, delay, first)


def check(
    checkpoints: Checkpoints,
    reference: PlainReference,
    schedule: list[Event],
    delay: dict[str, float],
    first: list[GenerateRequest],
) -> None:
    """Plays a schedule. delay: seconds of each message, by drafter. first: requests that are there from the start."""
    with structlog.testing.capture_logs() as log:
        asyncio.run(_play(checkpoints, reference, schedule, delay, first))
    assert not [entry for entry in log if entry["log_level"] in ("error", "critical") or "exc_info" in entry]


async def _play(
    checkpoints: Checkpoints,
    reference: PlainReference,
    schedule: list[Event],
    delay: dict[str, float],
    first: list[GenerateRequest],
) -> None:
    async with AsyncExitStack() as stack:
        verifier = await stack.enter_async_context(in_process_verifier(checkpoints.target, slots=256, max_sequences=4))
        handlers: dict[str, Handler] = {}
        pools = []
        for name, checkpoint in checkpoints.drafts.items():
            drafter = await stack.enter_async_context(in_process_drafter(checkpoint, kv_slots=256))
            handlers[name] = _slow(drafter.servicer.converse, delay[name])
            verifier.network.listen(f"{name}:1", handlers[name])
            pools.append(drafter.model.pool)
        calls = DrafterPoolServicer(verifier.pool)
        with suppress(ServiceError):
            await calls.AttachDrafter(pool_pb.AttachDrafterRequest(address="good:1", name="good"), None)
        tasks = [asyncio.create_task(_compare(verifier, reference, request)) for request in first]
        orders: list[asyncio.Task[None]] = []
        for event in schedule:
            await asyncio.sleep(event.seconds)
            if event.what == "ask" and event.request is not None:
                tasks.append(asyncio.create_task(_compare(verifier, reference, event.request)))
            elif event.what == "cancel":
                tasks[len(tasks) // 2].cancel()
            elif event.what == "break":
                await verifier.network.kill(f"{event.name}:1")
                verifier.network.listen(f"{event.name}:1", handlers[event.name])
            else:
                orders.append(asyncio.create_task(_order(calls, event)))
        async with asyncio.timeout(PATIENCE):
            for task in (*tasks, *orders):
                with suppress(asyncio.CancelledError):
                    await task
            for drafter in verifier.pool.describe():
                await verifier.pool.changes.detach(drafter.name)
            await verifier.freed()
            await verifier.until(lambda: not any(pool.used for pool in pools))


def _slow(converse: Handler, seconds: float) -> Handler:
    async def handler(stream: MessageStream[Any, Any]) -> None:
        await converse(SlowStream(stream, seconds) if seconds else stream)

    return handler


async def _compare(verifier: InProcessVerifier, reference: PlainReference, request: GenerateRequest) -> None:
    try:
        output = await verifier.generate(request)
    except ServiceError as error:
        if error.reason_name not in REQUEST_REASONS:
            raise
    else:
        assert output.token_ids == reference.of(request)


async def _order(calls: DrafterPoolServicer, event: Event) -> None:
    try:
        if event.what == "attach":
            request = pool_pb.AttachDrafterRequest(address=f"{event.name}:1", name=event.name)
            await calls.AttachDrafter(request, None)
        elif event.what == "detach":
            await calls.DetachDrafter(pool_pb.DetachDrafterRequest(name=event.name), None)
        else:
            await calls.SwapDrafter(pool_pb.SwapDrafterRequest(old_name=event.name, new_name=f"{event.other}:1"), None)
    except ServiceError as error:
        if error.reason_name not in POOL_REASONS:
            raise
