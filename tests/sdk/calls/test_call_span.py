"""The client's span: the parent of the verifier's in programs with tracing, absent in others."""

import sys

import grpc
import pytest
from opentelemetry import trace

from draftwire import AsyncClient, AtCapacityError, Client, RetryPolicy
from tests.harness.recorded_spans import RecordedSpans, events, parent_id, span_id, trace_id
from tests.harness.stand_ins.fake_verifier import PROMPT, FakeVerifier, rich_status
from tests.harness.waiting import PATIENCE


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> RecordedSpans:
    """Records the spans of a program that sets a provider. A process can set it only once, so this patches it."""
    made = RecordedSpans()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: made.provider)
    return made


def test_a_request_is_a_child_of_the_current_span(
    recorded: RecordedSpans, client: Client, verifier: FakeVerifier
) -> None:
    with recorded.provider.get_tracer("app").start_as_current_span("app"):
        result = client.generate(PROMPT, max_tokens=6, seed=5, temperature=0.5, top_k=9)
    span, app = recorded.ended
    assert (span.name, parent_id(span)) == ("text_completion", span_id(app))
    assert verifier.metadata[0]["traceparent"].startswith(f"00-{trace_id(app)}-{span_id(span)}-")
    host, _, port = verifier.address.rpartition(":")
    assert dict(span.attributes or {}) == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "draftwire",
        "gen_ai.request.stream": True,
        "gen_ai.request.seed": 5,
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_k": 9,
        "server.address": host,
        "server.port": int(port),
        "gen_ai.response.id": result.request_id,
        "gen_ai.response.finish_reasons": ("length",),
        "gen_ai.usage.input_tokens": len(PROMPT),
        "gen_ai.usage.output_tokens": 6,
        "draftwire.acceptance_rate": result.speculation.acceptance_rate,
        "draftwire.acceptance_length": result.speculation.acceptance_length,
        "draftwire.resumes": 0,
        "draftwire.restarts": 0,
    }


async def test_the_asyncio_client_does_the_same(recorded: RecordedSpans, verifier: FakeVerifier) -> None:
    async with AsyncClient(verifier.address, timeout=PATIENCE) as client:
        with recorded.provider.get_tracer("app").start_as_current_span("app"):
            await client.chat([{"role": "user", "content": "hi"}], max_tokens=4, seed=2**64 - 1)
    span, app = recorded.ended
    assert (span.name, parent_id(span)) == ("chat", span_id(app))
    assert span_id(span) in verifier.metadata[0]["traceparent"]
    assert (span.attributes or {})["gen_ai.request.seed"] == str(2**64 - 1)


def test_a_request_that_is_resumed_is_one_span(recorded: RecordedSpans, client: Client, verifier: FakeVerifier) -> None:
    verifier.break_after = [2]
    client.generate(PROMPT, max_tokens=6)
    (span,) = recorded.ended
    assert events(span) == ["resumed"]
    assert (span.attributes or {})["draftwire.resumes"] == 1
    first, second = (metadata["traceparent"] for metadata in verifier.metadata)
    assert first == second


def test_a_request_that_fails(recorded: RecordedSpans, verifier: FakeVerifier) -> None:
    verifier.break_after = [0]
    verifier.break_status = rich_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY")
    with Client(verifier.address, timeout=PATIENCE, retry=RetryPolicy(attempts_per_address=1)) as client:
        with pytest.raises(AtCapacityError):
            client.generate(PROMPT, max_tokens=6)
    (span,) = recorded.ended
    assert (span.attributes or {})["error.type"] == "AtCapacityError"
    assert not span.status.is_ok


def test_a_stream_that_is_left_early_is_no_failure(recorded: RecordedSpans, client: Client) -> None:
    with client.stream(PROMPT, max_tokens=60) as stream:
        next(stream)
    (span,) = recorded.ended
    assert events(span) == ["closed"]
    assert span.status.is_unset
    stream.close()
    assert len(recorded.ended) == 1


async def test_an_asyncio_stream_that_is_left_early(recorded: RecordedSpans, verifier: FakeVerifier) -> None:
    async with AsyncClient(verifier.address, timeout=PATIENCE) as client:
        async with client.stream(PROMPT, max_tokens=60) as stream:
            await anext(stream)
    (span,) = recorded.ended
    assert events(span) == ["closed"]


def test_other_calls_have_no_span(recorded: RecordedSpans, client: Client) -> None:
    client.drafters.list()
    client.tokenize("x")
    assert recorded.ended == []


def test_a_program_that_does_not_trace(monkeypatch: pytest.MonkeyPatch, client: Client, verifier: FakeVerifier) -> None:
    monkeypatch.delitem(sys.modules, "opentelemetry.trace")
    client.generate(PROMPT, max_tokens=4)
    assert "opentelemetry.trace" not in sys.modules
    assert "traceparent" not in verifier.metadata[0]
