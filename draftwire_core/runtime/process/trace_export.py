"""Export of a process's spans to a collector, by OTLP over gRPC. Needs the extra ``tracing``.

Settings beyond these, such as headers and certificates for a collector, come from OpenTelemetry's own variables
(``OTEL_EXPORTER_OTLP_HEADERS``, ``OTEL_EXPORTER_OTLP_CERTIFICATE``, ``OTEL_RESOURCE_ATTRIBUTES``).
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from draftwire.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_MOST_WAITING = 4096
"""Most spans that wait to be sent; further spans are lost while the collector does not accept any."""
_MOST_AT_ONCE = 512
_DELAY_MS = 1000
"""Time that a span waits for others to form a batch."""
_EXPORT_SECONDS = 5.0
"""Timeout for sending one batch."""
_LAST_WORDS_SECONDS = 0.5
"""Time for the sending thread to end once it was asked to give up."""


class TracingUnavailable(Exception):
    """The packages for tracing are not installed."""


def check_endpoint(endpoint: str) -> str:
    """Returns the address of a collector unchanged. An empty address turns tracing off.

    Raises:
        ValueError: the address is not an http:// or https:// URL of a host and a port.
    """
    if not endpoint:
        return endpoint
    try:
        parts = urlsplit(endpoint)
        well_formed = parts.scheme in ("http", "https") and parts.hostname and parts.port is not None
    except ValueError:
        well_formed = False
    if not well_formed or parts.path not in ("", "/") or parts.query or parts.username:
        raise ValueError(f"must be http://HOST:PORT or https://HOST:PORT of a collector, got {endpoint!r}")
    return endpoint


class TraceExport:
    """Creates the spans of a process and sends them from a thread of its own. Nothing waits for the collector."""

    def __init__(self, endpoint: str, sample_ratio: float, service_name: str) -> None:
        """Starts the export; ``close`` ends it.

        Args:
            endpoint: http://HOST:PORT of a collector, or https:// for TLS.
            sample_ratio: share, from 0 to 1, of the traces beginning in this process that are recorded. For traces that
                began elsewhere, the decision made there applies.
            service_name: service name of the spans.

        Raises:
            TracingUnavailable: OpenTelemetry's SDK or its exporter is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
        except ImportError as error:
            raise TracingUnavailable(f"tracing requires the extra draftwire[tracing]: {error}") from error
        self._exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_SECONDS)
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=Resource.create(
                {
                    "service.name": service_name,
                    "service.version": __version__,
                    "service.instance.id": str(uuid.uuid4()),
                }
            ),
            shutdown_on_exit=False,  # it would wait for a collector that is gone
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(
                self._exporter,
                max_queue_size=_MOST_WAITING,
                schedule_delay_millis=_DELAY_MS,
                max_export_batch_size=_MOST_AT_ONCE,
            )
        )

    @property
    def tracer(self) -> Tracer:
        """The tracer that creates spans."""
        return self._provider.get_tracer("draftwire", __version__)

    def install(self) -> None:
        """Sends the spans of libraries in this process, the SDK included, here as well. Call it once per process."""
        from opentelemetry import trace

        trace.set_tracer_provider(self._provider)

    def close(self, seconds: float) -> None:
        """Sends the remaining spans, for at most this many seconds, and ends. Blocks."""
        # In a thread, because the provider waits for the collector as long as a batch takes, whatever its timeout.
        closing = threading.Thread(target=self._provider.shutdown, name="trace-export-close", daemon=True)
        closing.start()
        closing.join(seconds)
        if closing.is_alive():
            self._exporter.shutdown()  # ends the running attempt
            closing.join(_LAST_WORDS_SECONDS)
