"""The bytes of streams of events, as a strict reader takes them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import grpc
import httpx
import pytest
from pydantic import BaseModel

from draftwire_core.runtime.process.tls_settings import CertificateExpiry
from gateway_service.http import event_stream
from gateway_service.http.connection import ClientLeft
from gateway_service.http.errors import GatewayError
from gateway_service.http.event_stream import DONE, EventStream, NamedEvent, event
from gateway_service.observability.metrics import Metrics
from gateway_service.settings import GatewaySettings
from tests.harness.stand_ins.fake_verifier import rich_status
from tests.harness.stand_ins.telling_verifier import TellingVerifier

COMPLETIONS: tuple[str, dict[str, Any]] = ("/v1/completions", {"prompt": "def f", "max_tokens": 8, "stream": True})
CHAT: tuple[str, dict[str, Any]] = (
    "/v1/chat/completions",
    {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "stream": True},
)
RESPONSES: tuple[str, dict[str, Any]] = ("/v1/responses", {"input": "hello", "max_output_tokens": 8, "stream": True})
ROUTES = pytest.mark.parametrize(("path", "body"), [COMPLETIONS, CHAT, RESPONSES], ids=["text", "chat", "responses"])


def events_of(content: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Returns the names, "" without one, and the data of all events but the last, which says that they are done."""
    *events, done, rest = content.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    found: list[tuple[str, dict[str, Any]]] = []
    for each in events:
        *names, data = each.decode().split("\n")
        assert len(names) <= 1 and all(name.startswith("event: ") for name in names) and data.startswith("data: {")
        found.append((names[0].removeprefix("event: ") if names else "", json.loads(data.removeprefix("data: "))))
    return found


def metrics() -> Metrics:
    return Metrics(CertificateExpiry(GatewaySettings()))


def names_as(path: str, data: dict[str, Any]) -> str:
    """Returns the name that an event has outside of its data: those of a response have their type."""
    return str(data.get("type", "")) if path == "/v1/responses" else ""


@ROUTES
async def test_each_event_and_the_last(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    response = await http.post(path, json=body)
    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    assert response.headers["cache-control"] == "no-cache" and response.headers["x-accel-buffering"] == "no"
    found = events_of(response.content)
    assert len(found) >= 4
    assert all(name == names_as(path, data) for name, data in found)
    assert not any("error" in data for _, data in found)


@ROUTES
async def test_an_error_within_a_stream(
    http: httpx.AsyncClient, fake: TellingVerifier, path: str, body: dict[str, Any]
) -> None:
    fake.break_after, fake.break_status = [4], rich_status(grpc.StatusCode.INTERNAL, "two\n\nlines", "INTERNAL")
    response = await http.post(path, json=body)
    assert response.status_code == 200
    *begun, (name, last) = events_of(response.content)
    assert len(begun) >= 2 and all(name == names_as(path, data) for name, data in begun)
    assert name == names_as(path, last) and last["error"]["message"].split() == ["two", "lines"]
    if path == "/v1/responses":  # clients tell events apart by their types
        assert (last.pop("type"), last.pop("sequence_number")) == ("error", len(begun))
        failed = begun[-1][1]["response"]
        assert failed["status"] == "failed" and failed["error"]["message"].split() == ["two", "lines"]
        assert begun[-1][0] == "response.failed" and failed["error"]["code"] == "internal"
        assert {key: last.pop(key) for key in ("message", "code", "param")}.items() <= last["error"].items()
    assert list(last) == ["error"]


@ROUTES
async def test_comments_come_while_no_event_does(
    http: httpx.AsyncClient, fake: TellingVerifier, path: str, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy would end a silent stream."""
    expected = events_of((await http.post(path, json=body)).content)
    monkeypatch.setattr(event_stream, "_SILENT_SECONDS", 0.05)
    fake.delay = 0.3
    response = await http.post(path, json=body)
    assert response.headers["cache-control"] == "no-cache"
    comments, begun, rest = response.content.rpartition(event_stream._COMMENT)
    assert set((comments + begun).split(b"\n\n")) == {b": waiting", b""}
    assert [name for name, _ in events_of(rest)] == [name for name, _ in expected]


async def test_an_error_after_comments_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_SILENT_SECONDS", 0.01)
    closed, sent, begun = [], [], []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.sleep(0.1)
            raise GatewayError("too late", status=504)
            yield b""
        finally:
            closed.append(1)

    async def never() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    stream = EventStream(
        events(),
        lambda error: (str(error).encode(), DONE),
        60.0,
        metrics(),
        begun.append,
    )
    await stream({}, never, send)
    bodies = [each.get("body") for each in sent]
    assert sent[0]["status"] == 200 and len(begun) == len(closed) == 1
    assert bodies[1] == event_stream._COMMENT and bodies[-3:] == [b"too late", DONE, b""]


async def test_a_client_that_leaves_before_the_first_event_ends_the_request() -> None:
    closed: list[int] = []

    async def events() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            closed.append(1)

    async def leave() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pytest.fail("sent to nobody")

    with pytest.raises(ClientLeft):
        await EventStream(events(), lambda _: (), 60.0, metrics())({}, leave, send)
    assert closed


@pytest.mark.parametrize(("path", "body"), [COMPLETIONS, CHAT], ids=["text", "chat"])
async def test_usage_comes_before_the_end(http: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    asked = body | {"n": 2, "stream_options": {"include_usage": True}}
    *choices, last = [data for _, data in events_of((await http.post(path, json=asked)).content)]
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 16)
    assert {choice["index"] for each in choices for choice in each["choices"]} == {0, 1}


async def test_an_error_before_the_first_event_is_no_stream(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    await http.get("/v1/models")
    fake.failures.append(rich_status(grpc.StatusCode.INTERNAL, "broken", "INTERNAL"))
    response = await http.post(COMPLETIONS[0], json=COMPLETIONS[1])
    assert (response.status_code, response.headers["content-type"]) == (500, "application/json")
    assert b"data:" not in response.content


def test_text_with_ends_of_lines_stays_one_event() -> None:
    class Said(NamedEvent):
        text: str

    assert event(Said(type="said", text="a\n\nb\r")) == (b'event: said\ndata: {"type":"said","text":"a\\n\\nb\\r"}\n\n')


def test_no_client_ends_a_line_within_an_event() -> None:
    """httpx, with which many read streams, ends a line wherever Python's strings end one."""

    class Said(BaseModel):
        text: str

    said = Said(text="a\x85b\u2028c\u2029d\x0be\x0cf\x1cg\r\nh ä\u2027\U0001f600")
    (line,) = filter(None, httpx.Response(200, content=event(said)).iter_lines())
    assert json.loads(line.removeprefix("data: ")) == said.model_dump()
