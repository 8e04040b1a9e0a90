"""Records the spans of a test's own process as they end."""

from __future__ import annotations

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased

from draftwire_core.runtime.observability.tracing import Tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{CALLER}-01"
UNSAMPLED = f"00-{TRACE}-{CALLER}-00"


class RecordedSpans:
    """Creates spans and keeps them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider.get_tracer("test"))

    @property
    def ended(self) -> list[ReadableSpan]:
        """Returns the spans in the order in which they ended."""
        return list(self._exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.ended]

    def one(self, name: str) -> ReadableSpan:
        """Returns the one span with this name."""
        (found,) = [span for span in self.ended if span.name == name]
        return found


def span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


def parent_id(span: ReadableSpan) -> str:
    """Returns the id of a span's parent; empty for the root of a trace."""
    return "" if span.parent is None else f"{span.parent.span_id:016x}"


def trace_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.trace_id:032x}"


def events(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events]
