"""Logs and traces of a request, and the request's name and span as its drafters receive them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.runtime.errors import ServiceError
from tests.harness.recorded_spans import (
    CALLER,
    TRACE,
    TRACEPARENT,
    RecordedSpans,
    events,
    parent_id,
    span_id,
    trace_id,
)
from tests.harness.services.in_process_verifier import InProcessVerifier, order
from tests.harness.services.services import Services
from tests.harness.stand_ins.scripted_drafter import ScriptedDrafter
from tests.harness.waiting import PATIENCE
from verifier_service.running.request_call import request_call
from verifier_service.running.running_request import RunningRequest

METADATA = (("traceparent", TRACEPARENT), ("x-request-id", "mine"))


@pytest.fixture
def recorded() -> RecordedSpans:
    return RecordedSpans()


@pytest.fixture
async def traced(services: Services, checkpoint: Path, recorded: RecordedSpans) -> AsyncIterator[InProcessVerifier]:
    async with services.in_process_verifier(checkpoint, tracing=recorded.tracing) as made:
        yield made


@asynccontextmanager
async def called(
    verifier: InProcessVerifier, request: pb.GenerateRequest, metadata: Any = METADATA
) -> AsyncIterator[RunningRequest]:
    """Does what the servicer does around a request."""
    inner = verifier.verifier
    with request_call(inner.tracing, inner.model.info.model_id, request, metadata) as call:
        read = await inner.reader.read(request, call.request_id)
        async with asyncio.timeout(PATIENCE), inner.run(read, "", call) as running:
            yield running


async def generate(verifier: InProcessVerifier, request: pb.GenerateRequest, metadata: Any = METADATA) -> None:
    async with called(verifier, request, metadata) as running:
        async for _ in running.events():
            pass


async def test_a_request_and_its_parts(traced: InProcessVerifier, recorded: RecordedSpans) -> None:
    with structlog.testing.capture_logs() as lines:
        await generate(traced, order(max_tokens=8))
    request = recorded.one("text_completion target")
    assert (trace_id(request), parent_id(request)) == (TRACE, CALLER)
    assert recorded.names == ["queue", "prefill", "decode", "text_completion target"]
    parts = recorded.ended[:3]
    assert {parent_id(part) for part in parts} == {span_id(request)}
    times = [(part.start_time or 0, part.end_time or 0) for part in parts]
    assert times == sorted(times)
    assert all(begin <= end for begin, end in times)
    told = dict(request.attributes or {})
    assert told["gen_ai.response.id"] == "mine"
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (6, 8)
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert (told["draftwire.acceptance"], told["draftwire.acceptance_length"]) == ("coupled", 1.0)
    accepted, finished = (line for line in lines if line["event"].startswith("request "))
    assert (accepted["event"], accepted["prompt_tokens"], accepted["max_length"]) == ("request accepted", 6, 14)
    assert (finished["event"], finished["completion_tokens"]) == ("request finished", 8)
    assert accepted["sequence_id"] == finished["sequence_id"] == told["draftwire.sequence_id"]


async def test_a_drafter_is_told_the_name_and_the_span(traced: InProcessVerifier, recorded: RecordedSpans) -> None:
    drafter = ScriptedDrafter()
    traced.network.listen("a:1", drafter.converse)
    await traced.pool.membership.attach("a:1", "one")
    await generate(traced, order(max_tokens=8))
    request = recorded.one("text_completion target")
    (opening,) = drafter.opened
    assert opening.request_id == "mine"
    assert opening.trace_context.traceparent == f"00-{TRACE}-{span_id(request)}-01"
    (event,) = request.events
    assert event.name == "drafter opened"
    assert dict(event.attributes or {}) == {"draftwire.drafter": "one", "draftwire.drafter.address": "a:1"}


async def test_a_lost_drafter_is_an_event(traced: InProcessVerifier, recorded: RecordedSpans) -> None:
    drafter = ScriptedDrafter()
    traced.network.listen("a:1", drafter.converse)
    await traced.pool.membership.attach("a:1", "one")
    traced.engine.hold(1)
    async with called(traced, order(max_tokens=8)) as running:
        await traced.until(lambda: drafter.opened)
        await traced.network.kill("a:1")
        await traced.until(lambda: traced.state("one").sequences == 0)
        traced.engine.go_on()
        async for _ in running.events():
            pass
    assert events(recorded.one("text_completion target")) == ["drafter opened", "drafter lost"]


async def test_a_refused_request(traced: InProcessVerifier, recorded: RecordedSpans) -> None:
    with structlog.testing.capture_logs() as lines, pytest.raises(ServiceError):
        await generate(traced, order(max_tokens=0))
    (span,) = recorded.ended
    assert (span.attributes or {})["error.type"] == "INVALID_FIELD"
    assert "max_tokens" in (span.status.description or "")
    (line,) = [line for line in lines if line["event"].startswith("request ")]
    assert (line["event"], line["code"], line["reason"]) == ("request failed", "INVALID_ARGUMENT", "INVALID_FIELD")


async def test_a_name_that_is_none(traced: InProcessVerifier, recorded: RecordedSpans) -> None:
    with pytest.raises(ServiceError, match="x-request-id"):
        await generate(traced, order(), (("x-request-id", "two words"),))
    assert recorded.ended == []


async def test_a_request_whose_caller_leaves(traced: InProcessVerifier, recorded: RecordedSpans) -> None:
    traced.engine.hold(1)

    async def begin() -> None:
        async with called(traced, order(max_tokens=8)) as running:
            async for event in running.events():
                if event.HasField("chunk"):
                    raise asyncio.CancelledError

    with structlog.testing.capture_logs() as lines, pytest.raises(asyncio.CancelledError):
        await begin()
    traced.engine.go_on()
    request = recorded.one("text_completion target")
    assert events(request) == ["cancelled"]
    assert request.status.is_unset
    assert (request.attributes or {})["gen_ai.usage.output_tokens"] == 1
    assert [line["event"] for line in lines if line["event"].startswith("request ")][-1] == "request cancelled"


async def test_a_fault_of_the_engine_is_told(
    traced: InProcessVerifier, recorded: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced.verifier._admission, "_max_requests", 0)
    with pytest.raises(ServiceError):
        await generate(traced, order())
    (span,) = recorded.ended
    assert (span.attributes or {})["error.type"] == "AT_CAPACITY"


async def test_where_nothing_is_traced(verifier: InProcessVerifier, recorded: RecordedSpans) -> None:
    drafter = ScriptedDrafter()
    verifier.network.listen("a:1", drafter.converse)
    await verifier.pool.membership.attach("a:1", "one")
    await generate(verifier, order(max_tokens=4))
    (opening,) = drafter.opened
    assert opening.request_id == "mine"
    assert opening.trace_context.traceparent == TRACEPARENT  # the caller's, passed on
    assert recorded.ended == []
