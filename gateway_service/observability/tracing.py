"""Spans of requests: FastAPI creates one for each request, and the SDK one for each choice.

FastAPI itself imports OpenTelemetry's API.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace


def _untraced(scope: MutableMapping[str, Any]) -> bool:
    """Returns whether a path runs no model: probes, the console's page, and its events, which last as long as the
    page."""
    return not str(scope.get("path", "")).startswith("/v1/")


TELEMETRY: TelemetryConfig = {
    "logs": False,  # they would contain bodies, which hold prompts
    "metrics": False,  # the gateway has its own at /metrics
    "operation_spans": False,
    "auto_configure": False,
    "exclude": _untraced,
}
"""Settings of FastAPI's telemetry: one span for each request, and nothing else."""


def name_span(request_id: str) -> dict[str, str]:
    """Records a request's id in its span; returns the log fields that link log lines to the trace."""
    span = trace.get_current_span()
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    span.set_attribute("draftwire.request_id", request_id)
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}
