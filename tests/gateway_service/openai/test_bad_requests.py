"""Requests that cannot be served, and limits, in front of a verifier without a model."""

import asyncio
import json
from typing import Any

import grpc
import httpx
import openai
import pytest

from draftwire import __version__
from tests.gateway_service.conftest import OpenGateway
from tests.harness.stand_ins.fake_verifier import PROMPT, rich_status
from tests.harness.stand_ins.telling_verifier import TellingVerifier

BODY = {"prompt": PROMPT, "max_tokens": 2}


async def fails(http: httpx.AsyncClient, body: dict[str, Any], status: int = 400) -> dict[str, Any]:
    response = await http.post("/v1/completions", json=BODY | body)
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"prompt": 5}, "invalid_value"),
        ({"prompt": [1, "a"]}, "invalid_value"),
        ({"prompt": [-1]}, "invalid_value"),
        ({"prompt": [True]}, "invalid_value"),
        ({"max_tokens": "5"}, "invalid_type"),
        ({"max_tokens": 0}, "invalid_value"),
        ({"max_tokens": -2}, "invalid_value"),
        ({"max_tokens": 1.5}, "invalid_type"),
        ({"temperature": "hot"}, "invalid_type"),
        ({"temperature": -1}, "invalid_value"),
        ({"top_p": -0.1}, "invalid_value"),
        ({"n": 0}, "invalid_value"),
        ({"n": True}, "invalid_type"),
        ({"stream": "yes"}, "invalid_type"),
        ({"stream_options": {"include_usage": True}}, "invalid_value"),
        ({"stop": [1]}, "invalid_value"),
        ({"seed": 2**64}, "invalid_value"),
        ({"logit_bias": {"word": 1}}, "invalid_value"),
        ({"logit_bias": {"-1": 1}}, "invalid_value"),
        ({"presence_penalty": 3}, "invalid_value"),
        ({"best_of": 3}, "unsupported_parameter"),
        ({"max_completion_tokens": 3}, "unsupported_parameter"),
        ({"suffix": 5}, "invalid_type"),
        ({"use_beam_search": True}, "unsupported_parameter"),
        ({"reasoning_effort": "low"}, "unsupported_parameter"),
        ({"add_special_tokens": False}, "unsupported_parameter"),
        ({"logprobs": True}, "invalid_type"),
    ],
)
async def test_the_field_is_named(http: httpx.AsyncClient, body: dict[str, Any], code: str) -> None:
    error = await fails(http, body)
    (field,) = body
    assert (error["param"], error["type"], error["code"]) == (field, "invalid_request_error", code), error
    assert error["message"].startswith(f"{field}:")


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("completions", {"prompt": []}, "prompt: is empty"),
        ("completions", {"prompt": [], "n": 2}, "prompt: is empty"),
        ("completions", {"response_format": "json"}, "response_format: must be an object"),
        ("chat/completions", {"messages": ["hello"]}, "messages[0]: must be an object"),
        ("chat/completions", {"messages": []}, "messages: list should have at least 1 item, not 0"),
    ],
)
async def test_what_is_expected_is_told(http: httpx.AsyncClient, path: str, body: dict[str, Any], message: str) -> None:
    response = await http.post(f"/v1/{path}", json=BODY | body)
    assert (response.status_code, response.json()["error"]["message"]) == (400, message)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/chat/completions",
         '"tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": 5}}}]',
         "tools[0].function.parameters"),
        ("/v1/chat/completions", '"chat_template_kwargs": {"budget": 5}', "chat_template_kwargs"),
        ("/v1/chat/completions", '"documents": [{"score": 5}]', "documents[0]"),
        ("/tokenize", '"chat_template_kwargs": {"budget": 5}', "chat_template_kwargs"),
        ("/v1/responses", '"input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"maximum": 5}}]',
         "tools[0].parameters"),
    ],
)  # fmt: skip
async def test_numbers_that_json_does_not_have(
    http: httpx.AsyncClient, path: str, body: str, param: str, number: str
) -> None:
    text = '{"messages": [{"role": "user", "content": "a"}], ' + body.replace("5", number) + "}"
    response = await http.post(path, content=text)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert error["message"] == f"{param}: must have finite numbers"


async def test_a_missing_prompt(http: httpx.AsyncClient) -> None:
    error = (await http.post("/v1/completions", json={})).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "missing_required_parameter")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"3", b"\xff\xfe{}", b'{"prompt": "\xff"}', b"[" * 100_000, b'{"prompt": "\\ud800"}',
     b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", b'{"prompt": "a", "temperature": NaN}',
     b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": "a", "speculation": {"\\ud800": 1}}',
     b'{"prompt": "a", "stop": ["\\ud800"]}', b'{"prompt": "a", "logit_bias": {"\\ud800": 1}}'],
)  # fmt: skip
async def test_what_is_no_request(http: httpx.AsyncClient, body: bytes) -> None:
    response = await http.post("/v1/completions", content=body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("wrap", ['{"a":', "["])
async def test_a_deep_schema(http: httpx.AsyncClient, wrap: str) -> None:
    depth = 900
    close = "}" if wrap == '{"a":' else "]"
    schema = wrap * depth + "1" + close * depth
    body = '{"prompt": "a", "max_tokens": 1, "guided_json": {"x": ' + schema + "}}"
    assert (await http.post("/v1/completions", content=body)).status_code in (200, 400)


async def test_an_unknown_model(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        await client.completions.create(model="other", prompt=PROMPT)
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_unknown_paths_and_methods(http: httpx.AsyncClient) -> None:
    missing, wrong = await http.get("/v2/models"), await http.get("/v1/completions")
    assert (missing.status_code, wrong.status_code) == (404, 405)
    assert wrong.headers["allow"] == "POST"
    assert missing.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("path", ["/v1", "/docs", "/v1/files", "/v1/embeddings", "/nowhere"])
async def test_a_path_that_is_none_is_told_what_there_is(http: httpx.AsyncClient, path: str) -> None:
    for method in ("GET", "POST"):
        missing = await http.request(method, path)
        message = missing.json()["error"]["message"]
        assert missing.status_code == 404 and message.startswith(f"{method} {path}: ")
        for served in ("POST /v1/completions", "POST /v1/chat/completions", "GET /v1/models", "GET /openapi.json"):
            assert served in message


async def test_what_other_servers_are_asked_for(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    assert (await http.get("/version")).json() == {"version": __version__}
    assert (await http.get("/ping")).status_code == 200
    fake.stop()
    assert (await http.get("/ping")).status_code == 503


STATUSES = [
    (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", ("sampling.top_p",), 400, "top_p", "invalid_field"),
    (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", ("log_probs",), 400, "logprobs", "invalid_field"),
    (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", ("messages.messages[2].role",), 400, "messages[2].role", None),
    (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", ("structured_output.regex",), 400, "response_format", None),
    (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_FIELD", ("stop[1]",), 400, "stop[1]", None),
    (grpc.StatusCode.INVALID_ARGUMENT, "TOKEN_OUT_OF_RANGE", ("token_ids.ids[3]",), 400, "prompt[3]", None),
    (grpc.StatusCode.INVALID_ARGUMENT, "EMPTY_PROMPT", ("text",), 400, "prompt", "empty_prompt"),
    (grpc.StatusCode.INVALID_ARGUMENT, "CONTEXT_EXCEEDED", (), 400, None, "context_length_exceeded"),
    (grpc.StatusCode.INVALID_ARGUMENT, "NOTHING_ALLOWED", (), 400, None, "nothing_allowed"),
    (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED", (), 502, None, "unauthenticated"),
    (grpc.StatusCode.PERMISSION_DENIED, "ROLE_MISSING", (), 502, None, "role_missing"),
    (grpc.StatusCode.NOT_FOUND, "DRAFTER_NOT_FOUND", (), 404, "speculation.drafter", "drafter_not_found"),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE", (), 413, None, "message_too_large"),
    (grpc.StatusCode.INTERNAL, "INTERNAL", (), 500, None, "internal"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("code", "reason", "fields", "status", "param", "name"), STATUSES)
async def test_errors_of_the_verifier(
    http: httpx.AsyncClient, fake: TellingVerifier, stream: bool, code: Any, reason: str | None,
    fields: tuple[str, ...], status: int, param: str | None, name: str | None,
) -> None:  # fmt: skip
    await http.get("/v1/models")  # so that the next call is the failing one
    fake.failures.append(rich_status(code, "it is so", reason, fields))
    error = await fails(http, {"stream": stream}, status)
    assert error["param"] == param
    assert "it is so" in error["message"]
    assert name in (None, error["code"])
    assert error["type"] == ("server_error" if status >= 500 else {404: "not_found_error"}.get(status, error["type"]))


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_says_what_ran_out(http: httpx.AsyncClient, fake: TellingVerifier, stream: bool) -> None:
    await http.get("/v1/models")
    fake.failures.append(rich_status(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded"))
    error = await fails(http, {"stream": stream}, 504)
    assert "ran out" in error["message"]
    assert error["type"] == "server_error"


async def test_what_is_no_verifier_is_a_fault_of_the_gateways_surroundings(
    http: httpx.AsyncClient, fake: TellingVerifier
) -> None:
    await http.get("/v1/models")
    fake.failures.append(rich_status(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"))
    error = await fails(http, {}, 502)
    assert error["type"] == "server_error"


async def test_a_full_verifier_says_when_to_try_again(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    await http.get("/v1/models")
    fake.failures.append(rich_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", "AT_CAPACITY", retry_after=2.5))
    response = await http.post("/v1/completions", json=BODY)
    assert (response.status_code, response.headers["retry-after"]) == (503, "3")
    assert response.json()["error"]["type"] == "server_error"


async def test_a_failure_of_a_stream_is_told_in_it(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    fake.break_after, fake.break_status = [4], rich_status(grpc.StatusCode.INTERNAL, "broken", "INTERNAL")
    response = await http.post("/v1/completions", json=BODY | {"max_tokens": 8, "stream": True})
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert response.status_code == 200 and events[-1] == "[DONE]"
    assert json.loads(events[-2])["error"] == {
        "message": "broken", "type": "server_error", "param": None, "code": "internal"
    }  # fmt: skip


async def test_too_many_choices(open_gateway: OpenGateway) -> None:
    http = await open_gateway(max_choices=4)
    assert (await fails(http, {"n": 5}))["param"] == "n"
    assert (await fails(http, {"prompt": ["a"] * 5}))["param"] == "prompt"
    assert (await fails(http, {"prompt": ["a"] * 3, "n": 2}))["param"] == "n"
    assert (await fails(http, {"prompt": []}))["param"] == "prompt"
    assert (await http.post("/v1/completions", json=BODY | {"prompt": ["a", "b"], "n": 2})).status_code == 200


async def test_too_much_at_once(open_gateway: OpenGateway, fake: TellingVerifier) -> None:
    http = await open_gateway(max_choices=2, max_generations=2)
    fake.hang_after = 2
    waiting = asyncio.create_task(http.post("/v1/completions", json=BODY | {"max_tokens": 8, "n": 2}))
    while fake.running < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    for stream in (False, True):
        response = await http.post("/v1/completions", json=BODY | {"stream": stream})
        assert response.status_code == 429 and response.headers["retry-after"] == "1"
        assert response.json()["error"]["type"] == "rate_limit_error"
    waiting.cancel()
    await asyncio.wait({waiting})
    assert await asyncio.to_thread(fake.is_idle)
    fake.hang_after = None
    assert (await http.post("/v1/completions", json=BODY | {"n": 2})).status_code == 200


async def test_the_length_is_bounded(open_gateway: OpenGateway, fake: TellingVerifier) -> None:
    http = await open_gateway(max_tokens=3)
    for asked in (2, 9, None):
        await http.post("/v1/completions", json=BODY | {"max_tokens": asked})
    await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert [request.max_tokens for request in fake.requests] == [2, 3, 3, 3]
    assert [request.fit_max_tokens for request in fake.requests] == [False, True, True, True]


async def test_a_suffix(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    for suffix, sent in (("end", True), ("", False), (None, False)):
        assert (await http.post("/v1/completions", json=BODY | {"suffix": suffix})).status_code == 200
        assert fake.requests[-1].HasField("suffix") is sent
    for body in ({"echo": True}, {"prompt": [1, 2]}):
        assert (await fails(http, {"suffix": "end"} | body))["param"] == "suffix"


async def test_a_default_that_nobody_sent_fits_into_the_context(http: httpx.AsyncClient, fake: TellingVerifier) -> None:
    for body in ({}, {"max_tokens": None}, {"max_tokens": 16}, {"max_tokens": -1}):
        await http.post("/v1/completions", json={"prompt": PROMPT} | body)
    told = [(request.max_tokens, request.fit_max_tokens) for request in fake.requests]
    assert told == [(16, True), (16, True), (16, False), (0, False)]
