"""Per-call context of a request: its id, its trace span, and its log lines."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.speculation_pb2 import AcceptanceRule
from draftwire.v1.trace_context_pb2 import TraceContext
from draftwire_core.runtime.observability.span import Span, Value
from draftwire_core.runtime.observability.tracing import Tracing
from draftwire_core.runtime.process.logs import bind_call_log, get_logger
from draftwire_core.runtime.rpc.handshake import shown
from draftwire_core.runtime.rpc.interceptors import told_error
from draftwire_core.runtime.rpc.request_id import given_request_id
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.running.running_request import RunningRequest

log = get_logger(__name__)

Metadata = Iterable[tuple[str, str | bytes]]
_INT64_END = 1 << 63


@dataclass(frozen=True, slots=True)
class RequestCall:
    """The context of one call for text, from its first byte."""

    request_id: str
    span: Span
    """Span of the call at this verifier; ended by `request_call`."""

    def accepted(self, request: RunningRequest) -> None:
        """Records that the request was accepted; it runs or waits."""
        order = request.order
        log.info(
            "request accepted",
            sequence_id=request.sequence_id,
            prompt_tokens=order.prompt_length,
            resumed_tokens=len(order.resumed),
            max_length=order.max_length,
        )
        if self.span.recording:
            self.span.set({"draftwire.sequence_id": request.sequence_id, **_asked(order)})

    def over(self, request: RunningRequest) -> None:
        """Records how an accepted request ended; the reason of a failure is recorded with its error."""
        if not request.finished:
            log.info("request cancelled", sequence_id=request.sequence_id, completion_tokens=request.completion_tokens)
        elif not request.failed:
            usage, stats = request.usage, request.speculation.message()
            log.info(
                "request finished",
                sequence_id=request.sequence_id,
                finish_reason=request.finish_reason,
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                draft_tokens=stats.draft_tokens,
                accepted_tokens=stats.accepted_tokens,
                steps=stats.steps,
                first_token_seconds=round(usage.first_token_seconds, 6),
                seconds=round(usage.total_seconds, 6),
            )
        if self.span.recording:
            self.span.set(_came(request))
            for interval in request.times.intervals():
                self.span.part(interval)


@contextmanager
def request_call(
    tracing: Tracing, model_id: str, request: pb.GenerateRequest, metadata: Metadata
) -> Iterator[RequestCall]:
    """Wraps everything that a call for text does. Log lines inside it carry the request's id and, if the call is
    traced, its trace. Errors raised inside are recorded in log and span and propagate.

    metadata: of the call; may carry an id and a trace. Raises ServiceError for an invalid id.
    """
    metadata = tuple(metadata)
    request_id = given_request_id(request.request_id, metadata) or f"req-{secrets.token_hex(6)}"
    operation = "chat" if request.WhichOneof("prompt") == "messages" else "text_completion"
    span = tracing.begin(
        f"{operation} {model_id}",
        _parent(metadata),
        {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "draftwire",
            "gen_ai.request.model": model_id,
            "gen_ai.response.id": request_id,
        },
    )
    bind_call_log(request_id=request_id, **span.log_fields)
    try:
        yield RequestCall(request_id, span)
    except (asyncio.CancelledError, GeneratorExit):
        span.event("cancelled", {})
        raise
    except Exception as error:
        told = told_error(error)
        if told is not None:
            log.info("request failed", code=told.code.name, reason=told.reason_name, message=shown(told.message))
            span.end(error=told.reason_name, message=shown(told.message))
        else:
            span.end(error=type(error).__name__)
        raise
    finally:
        span.end()


def _parent(metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext | None:
    """Returns the caller's span that the call is part of."""
    found = {key: value for key, value in metadata if key in ("traceparent", "tracestate") and isinstance(value, str)}
    return TraceContext(**found) if "traceparent" in found else None


def _asked(order: GenerateOrder) -> dict[str, Value]:
    """Returns what a request asks for, as span attributes; never its prompt."""
    sampling = order.sampling
    return {
        "gen_ai.request.max_tokens": order.max_length - order.prompt_length,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        # Trace attributes have no unsigned 64-bit integers.
        "gen_ai.request.seed": sampling.seed if sampling.seed < _INT64_END else str(sampling.seed),
        "gen_ai.usage.input_tokens": order.prompt_length,
        "draftwire.speculation": order.speculate,
        "draftwire.resumed_tokens": len(order.resumed),
    }


def _came(request: RunningRequest) -> dict[str, Value]:
    """Returns how a request went, as span attributes."""
    usage, stats = request.usage, request.speculation.message()
    attributes: dict[str, Value] = {
        "gen_ai.usage.output_tokens": usage.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.response.time_to_first_chunk": usage.first_token_seconds,
        "draftwire.steps": stats.steps,
        "draftwire.draft_tokens": stats.draft_tokens,
        "draftwire.accepted_tokens": stats.accepted_tokens,
        "draftwire.stale_nodes": stats.stale_nodes,
        "draftwire.acceptance": AcceptanceRule.Name(stats.acceptance).removeprefix("ACCEPTANCE_RULE_").lower(),
        "draftwire.acceptance_rate": stats.accepted_tokens / stats.draft_tokens if stats.draft_tokens else 0.0,
        "draftwire.acceptance_length": request.new_tokens / stats.steps if stats.steps else 0.0,
        "draftwire.drafters": request.speculation.drafter_names,
    }
    if request.finish_reason:
        attributes["gen_ai.response.finish_reasons"] = [request.finish_reason]
    return attributes
