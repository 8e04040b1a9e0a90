"""The gateway's part of traces: FastAPI makes a span of each request, and the SDK one of each choice.

FastAPI itself imports OpenTelemetry's API; its SDK and the exporter are imported only where an endpoint is set.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

from fastapi.telemetry import TelemetryConfig
from opentelemetry import trace

from draftwire._program.trace_export import TraceExport
from gateway.logs import get_logger
from gateway.settings import GatewaySettings

log = get_logger(__name__)

FLUSH_SECONDS = 2.0
"""Most time that the last spans have to get to the collector when the gateway ends."""


def _untraced(scope: MutableMapping[str, Any]) -> bool:
    """What is no work of the model: probes, the console's page, and its events, which last as long as the page."""
    return not str(scope.get("path", "")).startswith("/v1/")


TELEMETRY: TelemetryConfig = {
    "logs": False,  # they would bring bodies, which hold prompts
    "metrics": False,  # those of /metrics are the gateway's own
    "operation_spans": False,
    "auto_configure": False,
    "exclude": _untraced,
}
"""What FastAPI is to tell."""


def start_tracing(settings: GatewaySettings) -> TraceExport | None:
    """Trace from now on, where the settings ask for it. The caller closes what it gets.

    Raises:
        TracingUnavailable: what tracing needs is not installed.
    """
    if not settings.trace_endpoint:
        return None
    export = TraceExport(settings.trace_endpoint, settings.trace_sample_ratio, "draftwire-gateway")
    export.install()
    log.info("tracing", endpoint=settings.trace_endpoint, sample_ratio=settings.trace_sample_ratio)
    return export


def name_span(request_id: str) -> dict[str, str]:
    """Tell the present request's span its name; return what makes lines of the log findable from the trace."""
    span = trace.get_current_span()
    context = span.get_span_context()
    if not context.is_valid:
        return {}
    span.set_attribute("draftwire.request_id", request_id)
    return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}
