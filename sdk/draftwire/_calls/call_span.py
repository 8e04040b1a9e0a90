"""Client-side spans of requests, in programs that trace with OpenTelemetry.

OpenTelemetry is used only if the program itself has imported it; otherwise there is no trace to join.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from draftwire._messages.reading import GenerationReader, Reader
from draftwire._types.generation import Generation
from draftwire.errors import RequestCancelledError
from draftwire.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span

Metadata = tuple[tuple[str, str], ...]

_BROKEN_OFF = (asyncio.CancelledError, RequestCancelledError, KeyboardInterrupt)
"""Errors of a request that the caller itself has abandoned; they do not count as failures of the request."""


def begin_call_span(reader: Reader[Any, Any, Any]) -> CallSpan | None:
    """Begins the span of a request as a child of the current span.

    Returns None for calls other than generation, and if the program has not imported OpenTelemetry.
    """
    if "opentelemetry.trace" not in sys.modules or not isinstance(reader, GenerationReader):
        return None
    from opentelemetry import trace

    tracer = trace.get_tracer("draftwire", __version__)
    operation = reader.operation
    attributes: dict[str, Any] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "draftwire",
        "gen_ai.request.stream": True,  # as it is on the wire, whatever the caller asked for
        **reader.asked(),
    }
    return CallSpan(tracer.start_span(operation, kind=trace.SpanKind.CLIENT, attributes=attributes), reader)


class CallSpan:
    """The span of one request, across all its attempts. Ending it again does nothing."""

    def __init__(self, span: Span, reader: GenerationReader) -> None:
        """Wraps a started span. Called by ``begin_call_span``."""
        self._span = span
        self._reader = reader
        self._attempts = 0

    def attempt(self, address: str) -> Metadata:
        """Records an attempt at a verifier; returns the metadata that makes the verifier's span a child of this one."""
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._attempts += 1
        host, _, port = address.removeprefix("dns:///").rpartition(":")
        if host and port.isdigit():
            self._span.set_attributes({"server.address": host.strip("[]"), "server.port": int(port)})
        if self._attempts > 1:
            self._span.add_event("resumed", {"server.address": address, "draftwire.attempt": self._attempts})
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers, trace.set_span_in_context(self._span))
        return tuple(headers.items())

    def end(self, error: BaseException | None = None) -> None:
        """Ends the span with the result, with the caller's error, or as closed by the caller."""
        if not self._span.is_recording():
            return
        if self._reader.finished:
            self._span.set_attributes(_told(self._reader.result))
        elif error is not None and not isinstance(error, _BROKEN_OFF):
            from opentelemetry.trace import Status, StatusCode

            self._span.set_attribute("error.type", type(error).__name__)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        else:
            self._span.add_event("closed")
        self._span.end()


def _told(result: Generation) -> dict[str, Any]:
    """Returns a result as span attributes."""
    return {
        "gen_ai.response.id": result.request_id,
        "gen_ai.response.finish_reasons": [result.finish_reason],
        "gen_ai.usage.input_tokens": result.usage.prompt_tokens,
        "gen_ai.usage.output_tokens": result.usage.completion_tokens,
        "draftwire.acceptance_rate": result.speculation.acceptance_rate,
        "draftwire.acceptance_length": result.speculation.acceptance_length,
        "draftwire.resumes": result.resumes,
        "draftwire.restarts": result.restarts,
    }
