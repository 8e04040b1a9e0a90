"""Traces of real processes, from an HTTP request to the drafters, as a collector receives them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest

from draftwire import Client
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.verifier_service_pb2_grpc import VerifierServiceStub
from tests.harness.services.service_process import ServiceProcess
from tests.harness.services.services import STEADY_VERIFIER, Services
from tests.harness.stand_ins.trace_collector import CollectedSpan, TraceCollector
from tests.harness.waiting import PATIENCE, eventually, sometimes

pytestmark = pytest.mark.slow

PROMPT = "def read_config(path):\n"
TRACE = "0af7651916cd43dd8448eb211c80319c"
CALLER = "b7ad6b7169203331"
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 800, "temperature": 0, "ignore_eos": True, "seed": 3}


@dataclass
class Traced:
    """Services that send their traces to one collector."""

    collector: TraceCollector
    verifier: ServiceProcess
    drafters: list[ServiceProcess]
    gateway: ServiceProcess


@pytest.fixture(scope="module")
def traced(module_services: Services) -> Iterator[Traced]:
    with TraceCollector() as collector:
        flags = ("--trace-endpoint", collector.endpoint, "--log-level", "debug")
        drafters = [module_services.drafter(model, *flags) for model in ("draft", "draft-early")]
        verifier = module_services.verifier("target", *flags)
        gateway = module_services.gateway("--verifier", verifier.address, *flags).serving()
        yield Traced(collector, verifier, drafters, gateway)


def named(spans: list[CollectedSpan], service: str, name: str) -> CollectedSpan:
    """Returns the one span of a service whose name begins with `name`."""
    (found,) = [span for span in spans if span.service == f"draftwire-{service}" and span.name.startswith(name)]
    return found


def lines(service: ServiceProcess, name: str) -> list[dict[str, Any]]:
    """Returns the lines that a service has logged about a request."""
    return [event for event in service.events() if event.get("request_id") == name]


def logged(service: ServiceProcess, name: str, what: str) -> list[dict[str, Any]]:
    """Waits for log lines of one kind about a request."""
    return eventually(lambda: [event for event in lines(service, name) if event["event"] == what], f"{what} of {name}")


def test_a_request_that_is_swapped_is_one_trace(traced: Traced) -> None:
    first, second = (drafter.address for drafter in traced.drafters)
    plays = itertools.count()

    def play() -> tuple[str, str] | None:
        """Returns the request's name and trace, if both drafters have drafted."""
        number = next(plays)
        mine, trace = f"mine-{number}", f"{TRACE[:-2]}{number:02x}"
        headers = {"traceparent": f"00-{trace}-{CALLER}-01", "tracestate": "us=1", "x-request-id": mine}
        url = f"{traced.gateway.url}/v1/completions"
        with Client(traced.verifier.address, timeout=PATIENCE) as client:
            client.drafters.attach(first, "first")
            with httpx.stream("POST", url, json=BODY | {"stream": True}, headers=headers, timeout=PATIENCE) as answer:
                events = answer.iter_lines()
                response_id = next(events)
                eventually(
                    lambda: (
                        client.drafters.list()[0].accepted_tokens or not client.model_info().engine.running_sequences
                    ),
                    "the first one has drafted",
                )
                moved = client.drafters.swap("first", second).moved_sequences
                assert [*events][-2:] == ["data: [DONE]", ""]
            assert answer.headers["x-request-id"] == mine
            assert f'"id":"cmpl-{mine}"' in response_id
            drafted = client.drafters.detach(second).draft_tokens
        return (mine, trace) if moved and drafted else None

    mine, trace = sometimes(play, "both draft for the request")
    spans = traced.collector.trace(trace, lambda found: len(found) >= 8)
    http = named(spans, "gateway", "POST /v1/completions")
    call = named(spans, "gateway", "text_completion")
    request = named(spans, "verifier", "text_completion ")
    drafts = [span for span in spans if span.service == "draftwire-drafter"]
    parts = [named(spans, "verifier", name) for name in ("queue", "prefill", "decode")]
    assert len(spans) == 8
    assert [http.parent, call.parent, request.parent] == [CALLER, http.id, call.id]
    assert {span.parent for span in (*parts, *drafts)} == {request.id}
    assert {span.message.trace_state for span in spans} == {"us=1"}

    # The parts cover the request without a gap.
    times = [(part.message.start_time_unix_nano, part.message.end_time_unix_nano) for part in parts]
    assert [begin for begin, _ in times[1:]] == [end for _, end in times[:-1]]

    assert http.attributes.items() >= {
        "http.response.status_code": 200, "http.route": "/v1/completions", "draftwire.request_id": mine,
    }.items()  # fmt: skip
    host, _, port = traced.verifier.address.rpartition(":")
    for span in (call, request):
        assert (
            span.attributes.items()
            >= {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.request.max_tokens": 800,
                "gen_ai.request.temperature": 0.0,
                "gen_ai.request.seed": 3,
                "gen_ai.response.id": f"{mine}-0",
                "gen_ai.response.finish_reasons": ["length"],
                "gen_ai.usage.output_tokens": 800,
            }.items()
        )
        assert span.attributes["gen_ai.usage.input_tokens"] > 0
    assert call.attributes.items() >= {"server.address": host, "server.port": int(port)}.items()
    told = request.attributes
    assert told["gen_ai.request.model"].endswith("target")
    assert 0 < told["draftwire.acceptance_rate"] <= 1
    assert told["draftwire.acceptance_length"] == pytest.approx(800 / told["draftwire.steps"])
    assert told["draftwire.accepted_tokens"] == pytest.approx(
        told["draftwire.acceptance_rate"] * told["draftwire.draft_tokens"]
    )

    assert request.event("drafter swapped") == {"draftwire.drafter.old": "first", "draftwire.drafter": second}
    order = [name for name in request.events if name in ("drafter opened", "drafter swapped", "drafter closed")]
    assert order == ["drafter opened", "drafter opened", "drafter closed", "drafter swapped"]
    assert len(drafts) == 2
    for draft in drafts:
        assert draft.attributes["draftwire.request_id"] == f"{mine}-0"
        assert draft.attributes["draftwire.draft_tokens"] > 0
        assert "caught up" in draft.events
    assert drafts[1].attributes["draftwire.committed_tokens"] > drafts[0].attributes["draftwire.committed_tokens"]

    # Log lines are found by the client's request name, and by the trace.
    (line,) = logged(traced.gateway, mine, "request finished")
    assert (line["trace_id"], line["span_id"]) == (trace, http.id)
    logged(traced.verifier, f"{mine}-0", "call finished")
    of_verifier = lines(traced.verifier, f"{mine}-0")
    assert [event["event"] for event in of_verifier if event["level"] == "info"] == [
        "request accepted", "request finished", "call finished",
    ]  # fmt: skip
    finished = of_verifier[-2]
    assert (finished["completion_tokens"], finished["finish_reason"], finished["trace_id"]) == (800, "length", trace)
    assert finished["draft_tokens"] == told["draftwire.draft_tokens"]
    opened = [event["drafter"] for event in of_verifier if event["event"] == "sequence opened"]
    assert opened == ["first", second]
    for drafter, draft in zip(traced.drafters, drafts, strict=True):
        logged(drafter, f"{mine}-0", "sequence closed")
        of_drafter = lines(drafter, f"{mine}-0")
        assert [event["event"] for event in of_drafter] == ["sequence opened", "sequence closed"]
        assert {(event["trace_id"], event["span_id"]) for event in of_drafter} == {(trace, draft.id)}
        assert of_drafter[0]["sequence_id"] == told["draftwire.sequence_id"]


def test_a_refused_request_is_a_failed_span(traced: Traced) -> None:
    trace = TRACE[:-1] + "d"
    with grpc.insecure_channel(traced.verifier.address) as channel:
        metadata = (("x-request-id", "refused"), ("traceparent", f"00-{trace}-{CALLER}-01"))
        request = pb.GenerateRequest(text="x", max_tokens=0)
        with pytest.raises(grpc.RpcError):
            list(VerifierServiceStub(channel).Generate(request, metadata=metadata, timeout=PATIENCE))
    (span,) = traced.collector.trace(trace, len)
    assert span.attributes["error.type"] == "INVALID_FIELD"
    assert "max_tokens" in span.message.status.message
    logged(traced.verifier, "refused", "call finished")
    found = lines(traced.verifier, "refused")
    assert [event["event"] for event in found] == ["request failed", "call finished"]
    assert (found[0]["reason"], found[0]["trace_id"]) == ("INVALID_FIELD", trace)


def test_a_trace_that_is_not_recorded_leaves_nothing(traced: Traced) -> None:
    """The caller that begins a trace decides whether it is recorded."""
    trace = TRACE[:-1] + "e"
    headers = {"traceparent": f"00-{trace}-{CALLER}-00", "x-request-id": "unrecorded"}
    url = f"{traced.gateway.url}/v1/completions"
    assert httpx.post(url, json=BODY | {"max_tokens": 4}, headers=headers, timeout=PATIENCE).status_code == 200
    # Spans are sent in the order in which they end, so this trace arrives after the first.
    httpx.post(
        url, json=BODY | {"max_tokens": 4}, headers={"traceparent": f"00-{TRACE[:-1]}f-{CALLER}-01"}, timeout=PATIENCE
    )
    traced.collector.trace(TRACE[:-1] + "f", lambda found: {span.parent for span in found} >= {CALLER})
    assert all(span.trace != trace for span in traced.collector.spans)
    (line,) = logged(traced.gateway, "unrecorded", "request finished")
    assert line["trace_id"] == trace


def test_probes_and_pages_are_no_traces(traced: Traced) -> None:
    url = f"{traced.gateway.url}/health"
    eventually(lambda: httpx.get(url, timeout=PATIENCE).status_code == 200, "the verifier answers in time")
    line = eventually(
        lambda: next((event for event in traced.gateway.events() if event.get("path") == "/health"), None), "its line"
    )
    assert "trace_id" not in line


def test_without_an_endpoint_opentelemetrys_sdk_is_not_imported(services: Services) -> None:
    telling = "tests.harness.imports_told"
    drafter = services.drafter(program=telling, variables={"TOLD_SERVICE": "drafter_service"})
    verifier = services.verifier(
        "target", "--drafter", drafter.address, program=telling, variables={"TOLD_SERVICE": STEADY_VERIFIER}
    )
    with Client(verifier.address, timeout=PATIENCE) as client:
        eventually(lambda: client.drafters.list()[0].state == "ready", "the drafter is ready")
        options: Any = {"max_tokens": 40, "ignore_eos": True, "temperature": 0, "request_id": "mine"}
        sometimes(lambda: client.generate(PROMPT, **options).speculation.accepted_tokens, "it drafts in time")
    for service in (verifier, drafter):
        assert service.stop() == 0
        (told,) = [event for event in service.events() if event["event"] == "imported"]
        assert told["modules"] == []
    finished = next(event for event in lines(verifier, "mine") if event["event"] == "request finished")
    assert "trace_id" not in finished


def test_a_collector_that_is_gone_changes_nothing(traced: Traced, services: Services) -> None:
    with TraceCollector() as gone:
        endpoint = gone.endpoint
    alone = services.verifier("target", "--trace-endpoint", endpoint, "--shutdown-grace-seconds", "1")
    try:
        with (
            Client(alone.address, timeout=PATIENCE) as client,
            Client(traced.verifier.address, timeout=PATIENCE) as other,
        ):
            options: dict[str, Any] = {"max_tokens": 40, "ignore_eos": True, "seed": 5}
            for _ in range(2):
                assert client.generate(PROMPT, **options).text == other.generate(PROMPT, **options).text
        assert alone.stop() == 0
    finally:
        alone.kill()
