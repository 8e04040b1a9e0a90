"""Logs and traces of a drafter's sequences."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import structlog

from draftwire.v1 import drafter_service_pb2
from draftwire.v1.trace_context_pb2 import TraceContext
from tests.harness.drafter.verifier_side import VerifierSide
from tests.harness.recorded_spans import CALLER, TRACE, TRACEPARENT, RecordedSpans, events, parent_id, trace_id
from tests.harness.services.in_process_drafter import InProcessDrafter
from tests.harness.services.services import Services

CONTEXT = TraceContext(traceparent=TRACEPARENT)
PROMPT = [5, 9, 14, 23]


@pytest.fixture
def recorded() -> RecordedSpans:
    return RecordedSpans()


@pytest.fixture
async def side(services: Services, checkpoint: Path, recorded: RecordedSpans) -> AsyncIterator[VerifierSide]:
    """The verifier's side of a stream to a drafter with tracing."""
    async with (
        services.in_process_drafter(checkpoint, tracing=recorded.tracing) as drafter,
        drafter.connected() as made,
    ):
        yield made


async def test_an_opening_is_a_span(side: VerifierSide, recorded: RecordedSpans) -> None:
    with structlog.testing.capture_logs() as lines:
        await side.open(7, PROMPT, request_id="mine", trace_context=CONTEXT, chunk=3)
        await side.until(side.mirrors[7].best_path)
        await side.commit({7: side.mirrors[7].best_path()[:1]})
        await side.close(7)
        await side.end()
    (span,) = recorded.ended
    assert span.name.startswith("draft ")
    assert (trace_id(span), parent_id(span)) == (TRACE, CALLER)
    assert events(span) == ["caught up"]
    told = dict(span.attributes or {})
    assert (told["draftwire.request_id"], told["draftwire.sequence_id"], told["draftwire.epoch"]) == ("mine", 7, 1)
    assert (told["draftwire.committed_tokens"], told["draftwire.committed_length"]) == (4, 5)
    assert told["draftwire.draft_tokens"] >= 1
    opened, closed = (line for line in lines if line["event"].startswith("sequence "))
    assert (opened["event"], closed["event"]) == ("sequence opened", "sequence closed")
    for line in (opened, closed):
        assert (line["sequence_id"], line["request_id"], line["trace_id"]) == (7, "mine", TRACE)


async def test_accepted_tokens_are_those_of_the_verdicts(side: VerifierSide, recorded: RecordedSpans) -> None:
    await side.open(1, PROMPT, trace_context=CONTEXT)
    verdict = side.verdict(1, len(PROMPT) + 3, [1, 2, 3])
    verdict.accepted = 2
    await side.stream.write(drafter_service_pb2.DraftRequest(verdicts={"verdicts": [verdict]}))
    await side.close(1)
    await side.end()
    (span,) = recorded.ended
    assert (span.attributes or {})["draftwire.accepted_tokens"] == 2


async def test_a_new_opening_ends_the_span_of_the_old(side: VerifierSide, recorded: RecordedSpans) -> None:
    await side.open(1, PROMPT, epoch=1, trace_context=CONTEXT)
    await side.open(1, PROMPT, epoch=2, trace_context=CONTEXT)
    await side.close(1)
    await side.end()
    assert [(span.attributes or {})["draftwire.epoch"] for span in recorded.ended] == [1, 2]
    assert all(span.status.is_unset for span in recorded.ended)


async def test_a_fault_ends_it_as_failed(side: VerifierSide, recorded: RecordedSpans) -> None:
    with structlog.testing.capture_logs() as lines:
        await side.open(1, PROMPT, request_id="mine", trace_context=CONTEXT)
        await side.send_verdict(1, 99, [1])
        await side.error(1)
    (span,) = recorded.ended
    assert (span.attributes or {})["error.type"] == "sequence_failed"
    assert "99" in (span.status.description or "")
    (line,) = [line for line in lines if line["event"] == "sequence failed"]
    assert (line["request_id"], line["sequence_id"]) == ("mine", 1)


async def test_the_stream_s_end_ends_it(side: VerifierSide, recorded: RecordedSpans) -> None:
    await side.open(1, PROMPT, trace_context=CONTEXT)
    await side.until(lambda: side.opened)
    await side.end()
    (span,) = recorded.ended
    assert span.status.description == "the stream ended"


async def test_a_sequence_of_no_trace_has_no_span(side: VerifierSide, recorded: RecordedSpans) -> None:
    await side.open(1, PROMPT)
    await side.close(1)
    await side.end()
    assert recorded.ended == []


async def test_a_name_that_no_line_can_show_is_refused(drafter: InProcessDrafter) -> None:
    async with drafter.connected() as side:
        await side.open(1, PROMPT, request_id="two words")
        reason, error = await side.error(1)
    assert reason == "INVALID_FIELD"
    assert error.status.message.startswith("request_id: ")
