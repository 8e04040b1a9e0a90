"""Long bodies: read beside the event loop, with a bounded number of values, and refused at the first fault."""

import json
import threading
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, ValidationError

from draftwire._messages import conversation, requests, tokenization
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.http import json_body
from gateway_service.openai import chat_message
from gateway_service.openai.chat_request import ChatRequest
from gateway_service.openai.completion_request import CompletionRequest
from gateway_service.responses import request as responses_request
from gateway_service.responses.request import ResponsesRequest
from gateway_service.routes.tokens import DetokenizeRequest, TokenizeRequest

MANY = 200_000
TURN = {"role": "user", "content": "a"}
CALL = {"id": "a", "type": "function", "function": {"name": "a", "arguments": "{}"}}
CHAT: dict[str, Any] = {"messages": [TURN]}
PROMPT: dict[str, Any] = {"prompt": "a"}

PLACES: list[tuple[str, str, dict[str, Any]]] = [  # route, the array's name, the body around it
    ("/v1/responses", "input", {"input": ...}),
    ("/v1/responses", "input", {"input": [{"role": "user", "content": ...}]}),
    ("/v1/responses", "input", {"input": [{"type": "function_call_output", "call_id": "a", "output": ...}]}),
    ("/v1/responses", "input", {"input": [{"type": "reasoning", "content": ...}]}),
    ("/v1/responses", "tools", {"input": "a", "tools": ...}),
    ("/v1/chat/completions", "messages", {"messages": ...}),
    ("/v1/chat/completions", "messages", {"messages": [{"role": "user", "content": ...}]}),
    ("/v1/chat/completions", "messages", {"messages": [{"role": "assistant", "tool_calls": ...}]}),
    ("/v1/chat/completions", "tools", CHAT | {"tools": ...}),
    ("/v1/chat/completions", "modalities", CHAT | {"modalities": ...}),
    ("/v1/chat/completions", "prediction", CHAT | {"prediction": {"type": "content", "content": ...}}),
    ("/v1/completions", "prompt", {"prompt": ...}),
    ("/v1/completions", "prompt", {"prompt": [...]}),
    ("/v1/completions", "stop", PROMPT | {"stop": ...}),
    ("/v1/completions", "bad_words", PROMPT | {"bad_words": ...}),
    ("/v1/completions", "stop_token_ids", PROMPT | {"stop_token_ids": ...}),
    ("/v1/completions", "allowed_token_ids", PROMPT | {"allowed_token_ids": ...}),
    ("/v1/completions", "banned_token_ids", PROMPT | {"banned_token_ids": ...}),
    ("/v1/completions", "guided_choice", PROMPT | {"guided_choice": ...}),
    ("/v1/completions", "structured_outputs", PROMPT | {"structured_outputs": {"choice": ...}}),
    ("/v1/completions", "speculation", PROMPT | {"speculation": {"drafters": ...}}),
    ("/v1/completions", "speculation", PROMPT | {"speculation": {"prediction": ...}}),
    ("/tokenize", "messages", {"messages": ...}),
    ("/detokenize", "tokens", {"tokens": ...}),
]
OBJECTS: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/completions", "logit_bias", PROMPT | {"logit_bias": ...}),
    ("/v1/completions", "speculation", PROMPT | {"speculation": {"labels": ...}}),
]
MODELS: dict[str, type[BaseModel]] = {
    "/v1/responses": ResponsesRequest,
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}


def filled(body: Any, value: Any) -> Any:
    """Returns the body with `value` in the place of the ellipsis."""
    if body is ...:
        return value
    if isinstance(body, dict):
        return {key: filled(each, value) for key, each in body.items()}
    return [filled(each, value) for each in body] if isinstance(body, list) else body


@pytest.mark.parametrize(("path", "field", "around"), PLACES, ids=str)
@pytest.mark.parametrize("element", [1.5, {}], ids=["number", "object"])
def test_the_first_wrong_element_ends_the_validation(
    path: str, field: str, around: dict[str, Any], element: object
) -> None:
    with pytest.raises(ValidationError) as caught:
        MODELS[path].model_validate(filled(around, [element] * 20_000))
    assert caught.value.error_count() <= 2
    assert caught.value.errors()[0]["loc"][0] == field


@pytest.mark.parametrize(("path", "field", "around"), OBJECTS, ids=str)
def test_an_object_with_too_many_members(path: str, field: str, around: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        MODELS[path].model_validate(filled(around, {str(index): [] for index in range(5000)}))
    assert caught.value.error_count() == 1
    assert "at most" in caught.value.errors()[0]["msg"]
    assert caught.value.errors()[0]["loc"][0] == field


@pytest.mark.parametrize(
    ("path", "around"), [(path, around) for path, _, around in PLACES if path != "/tokenize"], ids=str
)
async def test_too_many_values_are_never_made(http: httpx.AsyncClient, path: str, around: dict[str, Any]) -> None:
    body = json.dumps(filled(around, ...), default=lambda _: "HERE").replace('"HERE"', "[" + "1," * MANY + "1]")
    refused = await http.post(path, content=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["message"] == "the body has more than 131072 values (--max-body-elements)"


async def test_as_many_as_allowed_arrive(http: httpx.AsyncClient, fake: Any) -> None:
    ids = [index % 100 for index in range(100_000)]
    answer = await http.post("/v1/completions", json={"prompt": ids, "max_tokens": 1})
    assert answer.status_code == 200, answer.text
    assert list(fake.requests[0].token_ids.ids) == ids


async def test_commas_in_a_text_are_no_values(http: httpx.AsyncClient, fake: Any) -> None:
    text = 'a, [b], {"c": "\\"}' * 20_000
    answer = await http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}]})
    assert answer.status_code == 200, answer.text
    assert fake.requests[0].messages.messages[0].content == text


@pytest.mark.parametrize("body", ["{", '{"prompt": "a", "max_tokens": "b"}', "[]", '{"prompt": "a"} b'])
async def test_a_long_body_is_refused_as_a_short_one_is(http: httpx.AsyncClient, body: str) -> None:
    short = await http.post("/v1/completions", content=body)
    long = await http.post("/v1/completions", content=" " * 100_000 + body)
    assert (short.status_code, long.status_code) == (400, 400)
    first, second = short.json()["error"], long.json()["error"]
    assert (first["param"], first["code"]) == (second["param"], second["code"])
    assert first["message"].partition(" at line")[0] == second["message"].partition(" at line")[0]


async def test_a_long_body_is_read_beside_the_loop(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    parse = json_body.from_json

    def noted(text: bytes) -> Any:
        threads.append(threading.get_ident())
        return parse(text)

    monkeypatch.setattr(json_body, "from_json", noted)
    for text in ("a", "a" * 100_000):
        await http.post("/v1/completions", json={"prompt": text, "max_tokens": 1})
    short, long = threads
    assert short == threading.get_ident() != long


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_grammars_and_conversations_of_a_long_body_are_made_beside_the_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads: list[tuple[str, int]] = []
    options, joined = AnswerPlan.options, chat_message.merged

    def made(plan: AnswerPlan) -> Any:
        threads.append(("options", threading.get_ident()))
        return options(plan)

    def merged(turns: Any) -> Any:
        threads.append(("conversation", threading.get_ident()))
        return joined(turns)

    monkeypatch.setattr(AnswerPlan, "options", made)
    monkeypatch.setattr(chat_message, "merged", merged)
    monkeypatch.setattr(responses_request, "merged", merged)
    here = threading.get_ident()
    for text, inside in (("a", True), ("a" * 100_000, False)):
        threads.clear()
        turns = [{"role": "user", "content": text}]
        response = await http.post(path, json={"messages": turns} if "chat" in path else {"input": turns})
        assert response.status_code == 200
        assert sorted(name for name, _ in threads) == ["conversation", "options"]
        assert all((thread == here) == inside for _, thread in threads)


@pytest.mark.parametrize("path", ["/tokenize", "/v1/chat/completions"])
async def test_a_long_conversation_is_made_and_encoded_beside_the_loop(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    threads: list[int] = []
    merged, encoded = chat_message.merged, conversation.conversation_message

    def noted_merged(turns: Any) -> Any:
        threads.append(threading.get_ident())
        return merged(turns)

    def noted_encoded(given: Any) -> Any:
        threads.append(threading.get_ident())
        return encoded(given)

    monkeypatch.setattr(chat_message, "merged", noted_merged)
    for module in (requests, tokenization):
        monkeypatch.setattr(module, "conversation_message", noted_encoded)
    turns = [{"role": role, "content": "a"} for role in ("user", "assistant")] * 1024
    response = await http.post(path, json={"messages": [*turns, TURN]})
    assert response.status_code == 200
    assert len(threads) == 2
    assert threading.get_ident() not in threads
