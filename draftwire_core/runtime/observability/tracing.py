"""The traces of a service, by OpenTelemetry; its SDK is imported only if an endpoint is set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracer, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from draftwire.v1.trace_context_pb2 import TraceContext
from draftwire_core.runtime.observability.span import Attributes, Span
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.process.settings import ServiceSettings
from draftwire_core.runtime.process.startup_error import StartupError
from draftwire_core.runtime.process.trace_export import TraceExport, TracingUnavailable

log = get_logger(__name__)

_FLUSH_SECONDS = 2.0
"""Longest time for the last spans to reach the collector when the service ends."""
_MOST_TRACEPARENT, _MOST_TRACESTATE = 256, 1024
"""Most characters of an incoming trace context; a longer one is ignored."""


class Tracing:
    """Begins the spans of a service."""

    def __init__(self, tracer: Tracer) -> None:
        """tracer: creates the spans."""
        self._tracer = tracer

    def begin(self, name: str, parent: TraceContext | None, attributes: Attributes) -> Span:
        """Begins the span of a caller's request; without a readable parent it begins a new trace."""
        context = Context()  # not the current one: this may run in another request's task
        if parent is not None and _bounded(parent):
            headers = {"traceparent": parent.traceparent, "tracestate": parent.tracestate}
            context = TraceContextTextMapPropagator().extract(headers, context)
        span = self._tracer.start_span(name, context, kind=SpanKind.SERVER, attributes=attributes)
        return Span(self._tracer, span)


NO_TRACING = Tracing(NoOpTracer())
"""Records no spans."""


@asynccontextmanager
async def running_tracing(settings: ServiceSettings, service_name: str) -> AsyncIterator[Tracing]:
    """Yields the tracing that the settings ask for; leaving the `async with` sends the remaining spans, within a
    bounded time.

    Raises StartupError when tracing is enabled but its packages are not installed.
    """
    if not settings.trace_endpoint:
        yield NO_TRACING
        return
    try:
        export = TraceExport(settings.trace_endpoint, settings.trace_sample_ratio, service_name)
    except TracingUnavailable as error:
        raise StartupError(f"--trace-endpoint: {error}") from error
    log.info("tracing enabled", endpoint=settings.trace_endpoint, sample_ratio=settings.trace_sample_ratio)
    try:
        yield Tracing(export.tracer)
    finally:
        await asyncio.to_thread(export.close, min(settings.shutdown_grace_seconds, _FLUSH_SECONDS))


def _bounded(context: TraceContext) -> bool:
    return len(context.traceparent) <= _MOST_TRACEPARENT and len(context.tracestate) <= _MOST_TRACESTATE
