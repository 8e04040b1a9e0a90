"""Tools in chat completions with OpenAI's client and a verifier without a model."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier

MESSAGES: Any = [{"role": "user", "content": "hello"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "description": "Tells it.", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "clock"}},
]
TWO = (
    'Let me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
)
ASKED: Any = {"model": "fake", "messages": MESSAGES, "tools": TOOLS}


@pytest.fixture
def fake() -> Iterator[ScriptedVerifier]:
    with ScriptedVerifier() as made:
        made.chat_format = pb.ChatFormat(tool_calls=pb.TOOL_CALL_FORMAT_HERMES)
        made.answer = TWO
        yield made


def calls_of(message: Any) -> list[tuple[str, str]]:
    return [(call.function.name, call.function.arguments) for call in message.tool_calls]


async def test_calls(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    done = await client.chat.completions.create(**ASKED)
    choice = done.choices[0]
    assert choice.message.content == "Let me see."
    assert calls_of(choice.message) == [("weather", '{"city": "Rome"}'), ("clock", "{}")]
    assert choice.finish_reason == "tool_calls"
    ids = [call.id for call in choice.message.tool_calls or ()]
    assert len(set(ids)) == 2 and all(each.startswith("call_") for each in ids)
    sent = fake.requests[0]
    assert [(tool.name, tool.description) for tool in sent.messages.tools] == [("weather", "Tells it."), ("clock", "")]
    assert json.loads(sent.messages.tools[0].parameters) == PARAMETERS
    assert not sent.HasField("structured_output") and not sent.special_tokens


async def test_long_names_of_tools(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    """opencode and VS Code put the name of an MCP server before that of its tool, at any length."""
    name = "server_" * 18 + "x"
    tool: Any = {"type": "function", "function": {"name": name, "strict": True, "parameters": PARAMETERS}}
    call = {"name": name, "arguments": {"city": "Rome"}}
    fake.answer = f"<tool_call>\n{json.dumps(call)}\n</tool_call>"
    done = (await http.post("/v1/chat/completions", json=ASKED | {"tools": [tool]})).json()
    (told,) = done["choices"][0]["message"]["tool_calls"]
    assert told["function"] == {"name": name, "arguments": '{"city": "Rome"}'}
    assert name in fake.requests[0].structured_output.lark
    tool["function"]["name"] = "x" * 129
    refused = await http.post("/v1/chat/completions", json=ASKED | {"tools": [tool]})
    assert refused.json()["error"]["param"] == "tools[0].function.name"


async def test_a_stream_of_calls_is_the_whole_answer(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    whole = (await client.chat.completions.create(**ASKED, extra_headers={"x-request-id": "one"})).choices[0].message
    for index, logprobs in ((0, False), (0, True)):
        stream = await client.chat.completions.create(
            **ASKED, stream=True, logprobs=logprobs, n=2, extra_headers={"x-request-id": "one"}
        )
        content, reasons, tokens = "", [], 0
        calls: dict[int, list[Any]] = {}
        async for chunk in stream:
            choice = chunk.choices[0]
            if choice.index != index:
                continue
            content += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
            tokens += len(choice.logprobs.content or ()) if choice.logprobs else 0
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                if call.index not in calls:
                    assert call.type == "function"
                    calls[call.index] = [call.id, call.function.name, ""]
                calls[call.index][2] += call.function.arguments or ""
        ids = [call[0] for call in calls.values()]
        assert content == whole.content == "Let me see." and len({*ids}) == 2
        assert [tuple(call[1:]) for call in calls.values()] == calls_of(whole)
        assert not {call.id for call in whole.tool_calls or ()} & {*ids}, "other requests have others"
        assert reasons == ["tool_calls"]
        assert tokens == (len(TWO) if logprobs else 0)


async def test_the_clients_own_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(**ASKED) as stream:
        async for _ in stream:
            pass
        done = await stream.get_final_completion()
    assert calls_of(done.choices[0].message) == [("weather", '{"city": "Rome"}'), ("clock", "{}")]


async def test_calls_alone_have_no_content(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    fake.answer = TWO.removeprefix("Let me see.\n")
    done = await client.chat.completions.create(**ASKED)
    assert done.choices[0].message.content is None
    fake.answer = "It is warm. "
    done = await client.chat.completions.create(**ASKED)
    assert done.choices[0].message.content == "It is warm. " and done.choices[0].message.tool_calls is None
    assert done.choices[0].finish_reason == "stop"


async def test_a_call_that_is_cut_off(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    fake.answer, fake.finish = TWO[:69], pb.FINISH_REASON_LENGTH
    done = await client.chat.completions.create(**ASKED)
    assert done.choices[0].finish_reason == "length"
    assert calls_of(done.choices[0].message) == [("weather", '{"city": "Ro')]


@pytest.mark.parametrize("end", [21, 24, 35, 50, 58])
async def test_a_call_that_is_cut_off_shows_no_marks(
    client: openai.AsyncOpenAI, fake: ScriptedVerifier, end: int
) -> None:
    fake.answer, fake.finish = TWO[:end], pb.FINISH_REASON_LENGTH
    choice = (await client.chat.completions.create(**ASKED)).choices[0]
    assert ((choice.message.content or "").rstrip(), choice.finish_reason) == ("Let me see.", "length")
    assert bool(choice.message.tool_calls) == (end >= 50)
    stream = await client.chat.completions.create(**ASKED, stream=True)
    deltas = [chunk.choices[0].delta async for chunk in stream]
    assert "".join(delta.content or "" for delta in deltas).rstrip() == "Let me see."
    names = [call.function and call.function.name for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(name or "" for name in names) == ("weather" if end >= 50 else "")
    tools: Any = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": False}]
    response = await client.responses.create(model="fake", input="hello", tools=tools)
    assert (response.output_text.rstrip(), response.status) == ("Let me see.", "incomplete")
    called = [(item.name, item.status) for item in response.output if item.type == "function_call"]
    assert called == ([("weather", "incomplete")] if end >= 50 else [])


@pytest.mark.parametrize(
    ("choice", "more", "allowed"),
    [
        ("required", {}, ("weather", "clock")),
        ({"type": "function", "function": {"name": "clock"}}, {}, ("clock",)),
        ("auto", {"parallel_tool_calls": False}, ("weather", "clock")),
    ],
)
async def test_a_choice_is_enforced_by_a_grammar(
    client: openai.AsyncOpenAI, fake: ScriptedVerifier, choice: Any, more: Any, allowed: tuple[str, ...]
) -> None:
    await client.chat.completions.create(**ASKED, tool_choice=choice, **more)
    sent = fake.requests[0]
    found = [name for name in ("weather", "clock") if f'\\"{name}\\"' in sent.structured_output.lark]
    assert tuple(found) == allowed
    assert len(sent.messages.tools) == 2


FORM: Any = {
    "type": "json_schema",
    "json_schema": {"name": "it", "schema": {"type": "object", "properties": {"temperature": {"type": "integer"}}}},
}


@pytest.mark.parametrize("answer", ['{"temperature": 3}', TWO.removeprefix("Let me see.\n")])
@pytest.mark.parametrize("streams", [False, True])
async def test_a_call_or_an_answer_of_the_form(
    client: openai.AsyncOpenAI, fake: ScriptedVerifier, answer: str, streams: bool
) -> None:
    fake.answer = answer
    if streams:
        async with client.chat.completions.stream(**ASKED, response_format=FORM) as stream:
            done = (await stream.get_final_completion()).choices[0]
    else:
        done = (await client.chat.completions.create(**ASKED, response_format=FORM)).choices[0]
    calls = done.finish_reason == "tool_calls"
    assert calls == (answer in TWO) and (done.message.content or None) == (None if calls else answer)
    if calls:
        assert calls_of(done.message) == [("weather", '{"city": "Rome"}'), ("clock", "{}")]
    lark = fake.requests[0].structured_output.lark
    assert '"temperature"' in lark and '\\"weather\\"' in lark


async def test_a_form_and_a_choice(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    await client.chat.completions.create(**ASKED, response_format=FORM, tool_choice="required")
    await client.chat.completions.create(**ASKED, response_format=FORM, tool_choice="none")
    required, none = (request.structured_output for request in fake.requests)
    assert "temperature" not in required.lark and "weather" in required.lark
    assert "temperature" in none.json_schema


async def test_no_choice_leaves_the_tools_out(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    done = await client.chat.completions.create(**ASKED, tool_choice="none")
    assert done.choices[0].message.content == TWO and not fake.requests[0].messages.tools


async def test_special_markers_are_asked_for(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    fake.chat_format = pb.ChatFormat(
        tool_calls=pb.TOOL_CALL_FORMAT_MISTRAL, marker_ids={"[TOOL_CALLS]": 5}, special_markers=True
    )
    fake.answer = '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Rome"}}]'
    done = await client.chat.completions.create(**ASKED, tool_choice="required")
    assert calls_of(done.choices[0].message) == [("weather", '{"city": "Rome"}')]
    assert [len(call.id) for call in done.choices[0].message.tool_calls or ()] == [9]
    assert fake.requests[0].special_tokens and "<[5]>" in fake.requests[0].structured_output.lark


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_a_conversation_with_calls(client: openai.AsyncOpenAI, fake: ScriptedVerifier, name: str) -> None:
    """Reasoning has the second name in the messages of clients of vLLM and OpenRouter."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call], name: "Rome?"},
        {"role": "tool", "tool_call_id": "c1", "content": "warm"},
    ]
    await client.chat.completions.create(**ASKED | {"messages": messages})
    _, asked, told = fake.requests[0].messages.messages
    assert (asked.content, asked.reasoning) == ("", "Rome?")
    assert [(each.id, each.name, each.arguments) for each in asked.tool_calls] == [
        ("c1", "weather", '{"city": "Rome"}')
    ]
    assert (told.role, told.content, told.tool_call_id, told.name) == ("tool", "warm", "c1", "weather")


async def test_an_image_that_a_tool_returns_does_not_end_the_session(
    client: openai.AsyncOpenAI, fake: ScriptedVerifier
) -> None:
    """Agents open images unasked, and send them with every further request."""
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
        {"type": "text", "text": " Opened."},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": parts},
    ]
    done = await client.chat.completions.with_raw_response.create(**ASKED | {"messages": messages})
    assert done.headers["x-draftwire-left-out"] == f"messages[{len(messages) - 1}].content[0](image_url)"
    result = fake.requests[0].messages.messages[-1]
    assert result.content == "[image_url left out: the model reads text alone] Opened."


async def test_images_that_a_tool_returns_and_a_user_sends_do_not_end_the_session(
    http: httpx.AsyncClient, fake: ScriptedVerifier
) -> None:
    """So goose, Cline and pydantic-ai do; an image behind an answer is the user's own, and refused as before."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    calls = [{"id": each, "function": {"name": "weather", "arguments": "{}"}} for each in ("c1", "c2")]
    messages: list[Any] = [
        *MESSAGES,
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "(see following user message for image)"},
        {"role": "user", "content": [image]},
        {"role": "user", "content": [{"type": "text", "text": "A file: "}, image]},
        {"role": "tool", "tool_call_id": "c2", "content": "warm"},
    ]
    done = await http.post("/v1/chat/completions", json=ASKED | {"messages": messages})
    assert done.headers["x-draftwire-left-out"] == ", ".join(
        f"{each}(image_url)" for each in ("messages[3].content[0]", "messages[4].content[1]")
    )
    text = "[image_url left out: the model reads text alone]"
    assert [each.content for each in fake.requests[0].messages.messages][3:5] == [text, f"A file: {text}"]
    messages += [{"role": "assistant", "content": "Warm."}, {"role": "user", "content": [image]}]
    refused = await http.post("/v1/chat/completions", json=ASKED | {"messages": messages})
    assert refused.json()["error"]["param"] == "messages[7].content[0].type"


def allowed(mode: str, *tools: Any) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_some_of_the_tools_are_allowed(client: openai.AsyncOpenAI, fake: ScriptedVerifier, mode: str) -> None:
    fake.answer = TWO[TWO.rindex("<tool_call>") :]
    choice: Any = allowed(mode, {"type": "function", "function": {"name": "clock"}}, {"type": "web_search"})
    done = await client.chat.completions.create(**ASKED, tool_choice=choice)
    assert calls_of(done.choices[0].message) == [("clock", "{}")]
    tools: Any = [{"type": "function"} | each["function"] for each in TOOLS]
    choice = {"type": "allowed_tools", "mode": mode, "tools": [{"type": "function", "name": "clock"}]}
    response: Any = await client.responses.create(model="fake", input="hello", tools=tools, tool_choice=choice)
    assert response.tool_choice.model_dump() == choice
    for sent in fake.requests:
        assert [each.name for each in sent.messages.tools] == ["clock"]
        assert sent.HasField("structured_output") == (mode == "required")


@pytest.mark.parametrize("other", [{"type": "web_search"}, {"type": "custom", "custom": {"name": "apply_patch"}}])
async def test_a_tool_that_is_no_function_is_left_out(
    client: openai.AsyncOpenAI, fake: ScriptedVerifier, other: Any
) -> None:
    done = await client.chat.completions.with_raw_response.create(**ASKED | {"tools": [other, *TOOLS]})
    assert done.headers["x-draftwire-left-out"] == f"tools[0]({other['type']})"
    assert [tool.name for tool in fake.requests[0].messages.tools] == ["weather", "clock"]


async def test_mistrals_name_of_required(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    anything: Any = "any"
    await client.chat.completions.create(**ASKED, tool_choice=anything)
    tools: Any = [{"type": "function", "name": "clock"}]
    await client.responses.create(model="fake", input="hello", tools=tools, tool_choice=anything)
    assert all(sent.HasField("structured_output") for sent in fake.requests)


CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


async def test_arguments_may_be_an_object(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    """Conversations of Hugging Face's form have them so."""
    call = CALL | {"function": {"name": "weather", "arguments": {"city": "Rom\u00e9"}}}
    asked = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
    response = await http.post("/v1/chat/completions", json=ASKED | {"messages": asked})
    assert response.status_code == 200, response.text
    (sent,) = fake.requests[0].messages.messages[1].tool_calls
    assert json.loads(sent.arguments) == {"city": "Rom\u00e9"}


@pytest.mark.parametrize("arguments", ["", "null", "[]", '{"text": "data", "urlp": "'])
async def test_whatever_a_model_has_written_can_be_sent_back(
    http: httpx.AsyncClient, fake: ScriptedVerifier, arguments: str
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [*MESSAGES, {"role": "assistant", "tool_calls": [call]}]
    response = await http.post("/v1/chat/completions", json={"messages": messages, "tools": TOOLS})
    assert response.status_code == 200, response.text
    items = [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c1", "output": "warm"},
    ]
    response = await http.post("/v1/responses", json={"input": items})
    assert response.status_code == 200, response.text
    for request in fake.requests:
        assert request.messages.messages[1].tool_calls[0].arguments == arguments


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"function": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [*TOOLS, TOOLS[0]]}, "tools[2].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}, "tools[0].function.parameters"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [5]}}}, "tool_choice"),
        ({"tool_choice": allowed("auto", {"type": "function", "function": {"name": "rm"}})}, "tool_choice"),
        ({"tool_choice": allowed("required", {"type": "web_search"})}, "tool_choice"),
        ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
        ({"parallel_tool_calls": 3}, "parallel_tool_calls"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]}, "messages[0].tool_calls"),
        ({"messages": [{"role": "system", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "c9"}]}, "messages[0].tool_call_id"),
    ],
)
async def test_bad_tools_are_named(http: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": TOOLS} | body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert param in error["message"]


async def test_a_model_without_tools(http: httpx.AsyncClient, fake: ScriptedVerifier) -> None:
    fake.chat_format = pb.ChatFormat()
    response = await http.post("/v1/chat/completions", json={"messages": MESSAGES, "tools": TOOLS})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "tools", "unsupported_parameter")
