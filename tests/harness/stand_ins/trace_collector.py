"""A trace collector: a real OTLP service on a free port that keeps the spans it receives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.harness.waiting import PATIENCE


@dataclass(frozen=True)
class CollectedSpan:
    """A span as received."""

    service: str
    message: trace_pb2.Span

    @property
    def name(self) -> str:
        return str(self.message.name)

    @property
    def id(self) -> str:
        return str(self.message.span_id.hex())

    @property
    def parent(self) -> str:
        """Returns the id of a span's parent; empty for the root of a trace."""
        return str(self.message.parent_span_id.hex())

    @property
    def trace(self) -> str:
        return str(self.message.trace_id.hex())

    @property
    def attributes(self) -> dict[str, Any]:
        return {each.key: _value(each.value) for each in self.message.attributes}

    @property
    def events(self) -> list[str]:
        return [event.name for event in self.message.events]

    def event(self, name: str) -> dict[str, Any]:
        """Returns the attributes of the one event with this name."""
        (found,) = [event for event in self.message.events if event.name == name]
        return {each.key: _value(each.value) for each in found.attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)


class TraceCollector(trace_service_pb2_grpc.TraceServiceServicer):  # type: ignore[misc]
    """Collects spans until the `with` block ends."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._spans: list[CollectedSpan] = []
        self._server = grpc.server(ThreadPoolExecutor(max_workers=4))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def Export(self, request: Any, context: Any) -> Any:
        with self._changed:
            for resource in request.resource_spans:
                named = {each.key: each.value.string_value for each in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self._spans += [CollectedSpan(named["service.name"], span) for span in scope.spans]
            self._changed.notify_all()
        return trace_service_pb2.ExportTraceServiceResponse()

    def trace(self, trace_id: str, complete: Callable[[list[CollectedSpan]], object]) -> list[CollectedSpan]:
        """Waits until a trace is complete; returns its spans in the order in which they began."""
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while True:
                found = [span for span in self._spans if span.trace == trace_id]
                if complete(found):
                    return sorted(found, key=lambda span: int(span.message.start_time_unix_nano))
                left = deadline - time.monotonic()
                assert left > 0, f"incomplete: {[(span.service, span.name) for span in found]}"
                self._changed.wait(left)

    @property
    def spans(self) -> list[CollectedSpan]:
        """Returns all spans received so far."""
        with self._changed:
            return list(self._spans)

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()
