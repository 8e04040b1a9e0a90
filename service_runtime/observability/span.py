"""A span of a trace, and what stands in its place where nothing is traced."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from draftwire.v1.trace_context_pb2 import TraceContext

if TYPE_CHECKING:
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

Value = str | bool | int | float | list[str]
Attributes = Mapping[str, Value]

_MOST_EVENTS = 100
"""Of one span; what is told beyond it would only push out what was told before."""


class Interval(NamedTuple):
    """A part of a span's time, by time.perf_counter."""

    name: str
    begin: float
    end: float


class Span:
    """No span: everything is passed over. `ExportedSpan` is one.

    Ends once; what is said afterwards is passed over, too.
    """

    @property
    def recording(self) -> bool:
        """Whether anything becomes of what is said; asked before attributes that cost something to collect."""
        return False

    @property
    def context(self) -> TraceContext | None:
        """What makes spans elsewhere children of this one; None where nothing is traced."""
        return None

    @property
    def log_fields(self) -> dict[str, str]:
        """What makes a line of the log findable from the trace: trace_id and span_id, or nothing."""
        return {}

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""

    def event(self, name: str, attributes: Attributes) -> None:
        """Notes that something happened now."""

    def part(self, interval: Interval) -> None:
        """Adds a child that is over already."""

    def end(self, error: str | None = None, message: str = "") -> None:
        """Ends it; `error`: the kind of the fault that ended it, with what it says."""


NO_SPAN = Span()


class ExportedSpan(Span):
    """A span of OpenTelemetry's. Where it is not sampled it only carries its context on."""

    def __init__(self, tracer: Tracer, span: OtelSpan) -> None:
        """`span` has begun; its children are made by `tracer`."""
        self._tracer = tracer
        self._span = span
        self._events = 0
        self._clock_offset_ns = time.time_ns() - time.perf_counter_ns()

    @property
    def recording(self) -> bool:
        """See Span."""
        return self._span.is_recording()

    @property
    def context(self) -> TraceContext | None:
        """See Span."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, trace.set_span_in_context(self._span))
        return TraceContext(**headers)

    @property
    def log_fields(self) -> dict[str, str]:
        """See Span."""
        from opentelemetry import trace

        context = self._span.get_span_context()
        return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}

    def set(self, attributes: Attributes) -> None:
        """See Span."""
        if self.recording:
            self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Attributes) -> None:
        """See Span."""
        self._events += 1
        if self._events <= _MOST_EVENTS and self.recording:
            self._span.add_event(name, attributes)

    def part(self, interval: Interval) -> None:
        """See Span."""
        if self.recording:
            from opentelemetry import trace

            context = trace.set_span_in_context(self._span)
            child = self._tracer.start_span(interval.name, context, start_time=self._epoch_ns(interval.begin))
            child.end(self._epoch_ns(interval.end))

    def end(self, error: str | None = None, message: str = "") -> None:
        """See Span."""
        if not self.recording:
            return
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR, message))
        self._span.end()

    def _epoch_ns(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._clock_offset_ns
