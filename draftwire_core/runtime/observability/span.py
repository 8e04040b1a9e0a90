"""A span of a trace."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from opentelemetry.trace import (
    INVALID_SPAN,
    NoOpTracer,
    Status,
    StatusCode,
    Tracer,
    format_span_id,
    format_trace_id,
    set_span_in_context,
)
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from draftwire.v1.trace_context_pb2 import TraceContext

Value = str | bool | int | float | list[str]
Attributes = Mapping[str, Value]

_MOST_EVENTS = 100
"""Most events of one span; later ones would only displace earlier ones."""


class Interval(NamedTuple):
    """A part of a span's time, by time.perf_counter."""

    name: str
    begin: float
    end: float


class Span:
    """A span of OpenTelemetry, which ignores everything where nothing is traced.

    A span ends once and ignores everything afterwards. If it is not sampled, it only propagates its context.
    """

    def __init__(self, tracer: Tracer, span: OtelSpan) -> None:
        """span: already begun. tracer: creates its children."""
        self._tracer = tracer
        self._span = span
        self._events = 0
        self._clock_offset_ns = time.time_ns() - time.perf_counter_ns()

    @property
    def recording(self) -> bool:
        """Whether the span is sampled; checked before collecting expensive attributes."""
        return self._span.is_recording()

    @property
    def context(self) -> TraceContext | None:
        """Context that makes spans elsewhere children of this one; None if nothing is traced."""
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, set_span_in_context(self._span))
        return TraceContext(**headers) if headers else None

    @property
    def log_fields(self) -> dict[str, str]:
        """Log fields that link a log line to the trace: trace_id and span_id, or none."""
        context = self._span.get_span_context()
        if not context.is_valid:
            return {}
        return {"trace_id": format_trace_id(context.trace_id), "span_id": format_span_id(context.span_id)}

    def set(self, attributes: Attributes) -> None:
        """Adds attributes."""
        self._span.set_attributes(attributes)

    def event(self, name: str, attributes: Attributes) -> None:
        """Records an event at the current time, up to the limit per span."""
        self._events += 1
        if self._events <= _MOST_EVENTS and self.recording:
            self._span.add_event(name, attributes)

    def part(self, interval: Interval) -> None:
        """Adds a child span that is already over."""
        if self.recording:
            child = self._tracer.start_span(
                interval.name, set_span_in_context(self._span), start_time=self._epoch_ns(interval.begin)
            )
            child.end(self._epoch_ns(interval.end))

    def end(self, error: str | None = None, message: str = "") -> None:
        """Ends the span. error: kind of the error that ended it. message: its text."""
        if not self.recording:
            return
        if error is not None:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR, message))
        self._span.end()

    def _epoch_ns(self, seconds: float) -> int:
        return int(seconds * 1e9) + self._clock_offset_ns


NO_SPAN = Span(NoOpTracer(), INVALID_SPAN)
"""A span that ignores everything."""
