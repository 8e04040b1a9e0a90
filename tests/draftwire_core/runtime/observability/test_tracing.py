import sys
import time

import pytest

from draftwire.v1.trace_context_pb2 import TraceContext
from draftwire_core.runtime.observability.span import NO_SPAN, Interval
from draftwire_core.runtime.observability.tracing import NO_TRACING, running_tracing
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from tests.harness.recorded_spans import (
    CALLER,
    TRACE,
    TRACEPARENT,
    UNSAMPLED,
    RecordedSpans,
    events,
    parent_id,
    span_id,
    trace_id,
)
from tests.harness.stand_ins.trace_collector import TraceCollector


@pytest.fixture
def recorded() -> RecordedSpans:
    return RecordedSpans()


def test_a_span_is_a_child_of_the_caller_s(recorded: RecordedSpans) -> None:
    span = recorded.tracing.begin("work", TraceContext(traceparent=TRACEPARENT, tracestate="us=1"), {"a": 1})
    assert span.context is not None
    assert span.context.tracestate == "us=1"
    span.end()
    (made,) = recorded.ended
    assert (trace_id(made), parent_id(made)) == (TRACE, CALLER)
    assert span.context.traceparent == f"00-{TRACE}-{span_id(made)}-01"
    assert span.log_fields == {"trace_id": TRACE, "span_id": span_id(made)}
    assert made.attributes == {"a": 1}


@pytest.mark.parametrize(
    "context",
    [
        None,
        TraceContext(),
        TraceContext(traceparent="nonsense"),
        TraceContext(traceparent=f"00-{'0' * 32}-{CALLER}-01"),
        TraceContext(traceparent=TRACEPARENT, tracestate="a=" + "x" * 1100),
        TraceContext(traceparent=TRACEPARENT + "-" + "x" * 300),
    ],
    ids=["none", "empty", "nonsense", "zero", "long state", "long parent"],
)
def test_without_a_parent_that_can_be_read_a_trace_begins(
    recorded: RecordedSpans, context: TraceContext | None
) -> None:
    recorded.tracing.begin("work", context, {}).end()
    (made,) = recorded.ended
    assert parent_id(made) == ""
    assert trace_id(made) != TRACE


def test_the_current_span_of_the_task_is_no_parent(recorded: RecordedSpans) -> None:
    with recorded.provider.get_tracer("other").start_as_current_span("other"):
        recorded.tracing.begin("work", None, {}).end()
    assert parent_id(recorded.one("work")) == ""


def test_what_is_not_sampled_passes_its_context_on_and_nothing_else(recorded: RecordedSpans) -> None:
    span = recorded.tracing.begin("work", TraceContext(traceparent=UNSAMPLED), {})
    assert not span.recording
    assert span.context is not None
    assert span.context.traceparent.startswith(f"00-{TRACE}-")
    assert span.context.traceparent.endswith("-00")
    span.part(Interval("part", 1.0, 2.0))
    span.event("e", {})
    span.end("WRONG")
    assert recorded.ended == []


def test_parts_have_their_own_times(recorded: RecordedSpans) -> None:
    span = recorded.tracing.begin("work", None, {})
    now, epoch = time.perf_counter(), time.time_ns()
    span.part(Interval("part", now - 2.0, now - 1.5))
    span.end()
    part, whole = recorded.ended
    assert parent_id(part) == span_id(whole)
    assert part.start_time is not None
    assert part.end_time is not None
    assert part.end_time - part.start_time == pytest.approx(0.5e9, abs=1e3)
    assert part.start_time == pytest.approx(epoch - 2_000_000_000, abs=5e8)


def test_an_error_ends_it_once(recorded: RecordedSpans) -> None:
    span = recorded.tracing.begin("work", None, {})
    span.end("AT_CAPACITY", "full")
    span.set({"late": True})
    span.event("late", {})
    span.end()
    (made,) = recorded.ended
    assert made.attributes == {"error.type": "AT_CAPACITY"}
    assert (made.status.is_ok, made.status.description) == (False, "full")
    assert events(made) == []


def test_events_are_bounded(recorded: RecordedSpans) -> None:
    span = recorded.tracing.begin("work", None, {})
    for number in range(200):
        span.event("e", {"number": number})
    span.end()
    (made,) = recorded.ended
    assert [event.attributes["number"] for event in made.events if event.attributes] == list(range(100))


def test_no_span_takes_everything() -> None:
    span = NO_SPAN
    span.set({"a": 1})
    span.event("e", {})
    span.part(Interval("p", 0, 1))
    span.end("ERROR")
    assert (span.context, span.log_fields, span.recording) == (None, {}, False)


def test_without_tracing_the_context_of_a_caller_is_passed_on() -> None:
    assert NO_TRACING.begin("work", None, {}).context is None
    span = NO_TRACING.begin("work", TraceContext(traceparent=TRACEPARENT), {})
    assert span.context == TraceContext(traceparent=TRACEPARENT)
    assert not span.recording


async def test_off_by_default() -> None:
    async with running_tracing(ServiceSettings(), "draftwire-test") as tracing:
        assert tracing is NO_TRACING


async def test_what_is_left_is_sent_at_the_end() -> None:
    with TraceCollector() as collector:
        async with running_tracing(ServiceSettings(trace_endpoint=collector.endpoint), "draftwire-test") as tracing:
            tracing.begin("work", TraceContext(traceparent=TRACEPARENT), {}).end()
        (span,) = collector.spans
    assert (span.service, span.name, span.parent) == ("draftwire-test", "work", CALLER)


async def test_the_ratio_is_of_traces_that_begin_here() -> None:
    with TraceCollector() as collector:
        settings = ServiceSettings(trace_endpoint=collector.endpoint, trace_sample_ratio=0.0)
        async with running_tracing(settings, "draftwire-test") as tracing:
            tracing.begin("begun here", None, {}).end()
            tracing.begin("begun elsewhere", TraceContext(traceparent=TRACEPARENT), {}).end()
        assert [span.name for span in collector.spans] == ["begun elsewhere"]


async def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartupError, match=r"--trace-endpoint: tracing requires the extra draftwire\[tracing\]"):
        async with running_tracing(ServiceSettings(trace_endpoint="http://127.0.0.1:4317"), "draftwire-test"):
            pass
