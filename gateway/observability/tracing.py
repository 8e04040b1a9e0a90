"""Spans of requests: FastAPI makes one for each request, and the SDK one for each choice.

FastAPI itself imports OpenTelemetry's API.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace


def _untraced(scope: MutableMapping[str, Any]) -> bool:
    """Whether no model works for a path: probes, the console's page, and its events, which last as long as the page."""
    return not str(scope.get("path", "")).startswith("/v1/")


TELEMETRY: TelemetryConfig = {
    "logs": False,  # they would bring bodies, which hold prompts
    "metrics": False,  # those of /metrics are the gateway's own
    "operation_spans": False,
    "auto_configure": False,
    "exclude": _untraced,
}
"""FastAPI's telemetry: a span for each request, and nothing else."""


def name_span(request_id: str) -> dict[str, str]:
    """Put a request's name into its span; return the fields that let lines of the log be found from the trace."""
    span = trace.get_current_span()
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    span.set_attribute("draftwire.request_id", request_id)
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}
