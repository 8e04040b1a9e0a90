"""Options of a conversation that reach the chat template, with a verifier without a model."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier

QWEN = pb.ChatFormat(
    reasoning_begin="<think>",
    reasoning_end="</think>",
    reasoning_open=True,
    tool_calls=pb.TOOL_CALL_FORMAT_HERMES,
    template_variables=["enable_thinking"],
)
QUIET = pb.ChatFormat(reasoning_begin="<think>", reasoning_end="</think>", template_variables=QWEN.template_variables)
HARMONY = pb.ChatFormat(tool_calls=pb.TOOL_CALL_FORMAT_HARMONY, template_variables=["reasoning_effort", "documents"])
REASONS = pb.ChatFormat(reasoning_begin="<think>", reasoning_end="</think>")
PLAIN = pb.ChatFormat()
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
CONTINUED: dict[str, Any] = {"messages": [*ASKED["messages"], {"role": "assistant", "content": "Well,"}]}
LEFT_OUT = "x-draftwire-left-out"


@pytest.fixture
def fake() -> Iterator[ScriptedVerifier]:
    with ScriptedVerifier() as made:
        made.answer = "So it is."
        made.chat_format = QWEN
        made.formats = {'{"enable_thinking": false}': QUIET}
        yield made


async def asked(http: httpx.AsyncClient, body: dict[str, Any], status: int = 200) -> httpx.Response:
    response = await http.post("/v1/chat/completions", json=ASKED | body)
    assert response.status_code == status, response.text
    return response


def variables(fake: ScriptedVerifier) -> Any:
    return json.loads(fake.requests[-1].messages.chat_template_kwargs or "{}")


@pytest.mark.parametrize(
    ("chat_format", "body", "sent", "left_out"),
    [
        (QWEN, {"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}, None),
        (QWEN, {"enable_thinking": False}, {"enable_thinking": False}, None),
        (QWEN, {"thinking": {"type": "disabled"}}, {"enable_thinking": False}, None),
        (QWEN, {"reasoning_effort": "none"}, {"enable_thinking": False}, None),
        (QWEN, {"reasoning_effort": "high"}, {"enable_thinking": True}, "reasoning_effort"),
        (QWEN, {"chat_template_kwargs": {"tone": 1}}, {"tone": 1}, "chat_template_kwargs.tone"),
        (HARMONY, {"reasoning_effort": "low"}, {"reasoning_effort": "low"}, None),
        (HARMONY, {"documents": [{"text": "x"}]}, {"documents": [{"text": "x"}]}, None),
        (PLAIN, {"reasoning_effort": "none"}, {}, None),
        (PLAIN, {"reasoning_effort": "low", "verbosity": "low"}, {}, "reasoning_effort, verbosity"),
        (PLAIN, {"enable_thinking": True}, {}, "enable_thinking"),
    ],
)
async def test_variables_reach_the_template(
    http: httpx.AsyncClient, fake: ScriptedVerifier, chat_format: Any, body: Any, sent: Any, left_out: str | None
) -> None:
    fake.chat_format = chat_format
    for stream in (False, True):
        response = await asked(http, body | {"stream": stream})
        assert variables(fake) == sent
        assert response.headers.get(LEFT_OUT) == left_out


@pytest.mark.parametrize(
    ("chat_format", "body", "param"),
    [
        (REASONS, {"reasoning_effort": "none"}, "reasoning_effort"),
        (REASONS, {"enable_thinking": False}, "enable_thinking"),
        (REASONS, {"thinking": {"type": "disabled"}}, "thinking"),
        (QWEN, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking.budget_tokens"),
        (HARMONY, {"reasoning_effort": "none"}, "reasoning_effort"),
        (QWEN, {"reasoning_effort": "extreme"}, "reasoning_effort"),
        (QWEN, {"reasoning_effort": "low", "enable_thinking": False}, "reasoning_effort"),
        (QWEN, {"documents": [{"text": "x"}]}, "documents"),
        (QWEN, {"chat_template_kwargs": [1]}, "chat_template_kwargs"),
        (QWEN, {"chat_template": "{{ messages }}"}, "chat_template"),
        (QWEN, CONTINUED | {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (QWEN, {"messages": [{"role": "user", "content": "hello", "prefix": True}]}, "messages[0].prefix"),
        (QWEN, {"messages": [{"role": "assistant", "content": "hello", "partial": True}]}, "messages[0].partial"),
    ],
)
async def test_what_the_template_cannot_do_is_refused(
    http: httpx.AsyncClient, fake: ScriptedVerifier, chat_format: Any, body: Any, param: str
) -> None:
    fake.chat_format = chat_format
    error = (await asked(http, body, 400)).json()["error"]
    assert error["param"] == param and error["message"].startswith(param)
    assert "extra inputs" not in error["message"]
    assert not fake.requests


async def test_an_answer_without_reasoning_is_no_reasoning(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    """The prompt of this template ends within the reasoning, unless a variable turns it off."""
    fake.answer = "Hm.</think>So it is."
    message = (await asked(http, {})).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "So it is.")
    fake.answer = "So it is."
    message = (await asked(http, {"reasoning_effort": "none"})).json()["choices"][0]["message"]
    assert message["content"] == "So it is." and not message.get("reasoning_content")


@pytest.mark.parametrize("body", [{"continue_final_message": True}, {"prefix": True}])
async def test_a_message_is_continued(http: httpx.AsyncClient, fake: ScriptedVerifier, body: Any) -> None:
    last = CONTINUED["messages"][-1]
    body = {"messages": [*ASKED["messages"], last | body]} if "prefix" in body else CONTINUED | body
    message = (await asked(http, body)).json()["choices"][0]["message"]
    assert message["content"] == "So it is." and not message.get("reasoning_content")
    sent = fake.requests[-1].messages
    assert sent.continue_final_message and sent.messages[-1].content == "Well,"


async def test_no_generation_prompt(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    await asked(http, {"add_generation_prompt": False})
    sent = fake.requests[-1].messages
    assert sent.HasField("add_generation_prompt") and not sent.add_generation_prompt
    await asked(http, {"add_generation_prompt": True})
    assert not fake.requests[-1].messages.HasField("add_generation_prompt")


async def test_responses(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    body = {"input": "hello", "reasoning": {"effort": "none", "summary": "auto"}, "text": {"verbosity": "low"}}
    response = await http.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    assert variables(fake) == {"enable_thinking": False}
    assert response.headers[LEFT_OUT] == "text.verbosity, reasoning.summary"
    assert [item["type"] for item in response.json()["output"]] == ["message"]


async def test_further_options_of_reasoning_are_named(http: httpx.AsyncClient) -> None:
    reasoning = {"effort": None, "enabled": False, "max_tokens": 99, "exclude": None}
    response = await http.post("/v1/responses", json={"input": "hello", "reasoning": reasoning})
    assert response.status_code == 200, response.text
    assert response.headers[LEFT_OUT] == "reasoning.enabled, reasoning.max_tokens"


async def test_names_of_speakers_reach_the_template(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "hello", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "warm", "tool_call_id": "c1", "name": "other"},
    ]
    response = await http.post("/v1/chat/completions", json={"messages": messages})
    assert response.status_code == 200, response.text
    sent = fake.requests[-1].messages.messages
    assert [each.name for each in sent] == ["ann", "", "weather"] and not sent[1].HasField("name")


async def test_special_tokens_are_kept(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    for skip, kept in ((False, True), (True, False), (None, False)):
        await asked(http, {"skip_special_tokens": skip})
        assert fake.requests[-1].special_tokens is kept


@pytest.mark.parametrize(
    ("more", "variables", "left_out"),
    [
        ({"enable_thinking": False}, {"enable_thinking": False}, None),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}, None),
        ({"verbosity": "low", "unknown": 1}, {}, "unknown, verbosity"),
        ({"tools": [{"type": "web_search"}]}, {}, "tools[0](web_search)"),
    ],
)
async def test_a_conversation_is_tokenized_as_it_is_answered(
    http: httpx.AsyncClient,
    fake: ScriptedVerifier,
    more: dict[str, Any],
    variables: dict[str, Any],
    left_out: str | None,
) -> None:
    response = await http.post("/tokenize", json=ASKED | more)
    assert response.status_code == 200, response.text
    assert json.loads(fake.tokenized[0].messages.chat_template_kwargs or "{}") == variables
    assert response.headers.get(LEFT_OUT) == left_out
    refused = await http.post("/tokenize", json=ASKED | {"chat_template": "{{ messages }}"})
    assert refused.json()["error"]["param"] == "chat_template"
