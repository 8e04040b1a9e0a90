"""The Responses API with OpenAI's client and a verifier without a model."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from draftwire.v1 import verifier_service_pb2 as pb
from tests.harness.stand_ins.scripted_verifier import ScriptedVerifier

TOOLS: Any = [{"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}]
ANSWER = (
    "<think>\nRome?\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
)
ACTION = {"type": "exec", "command": ["ls"], "env": {}}
ASKED: Any = {"model": "fake", "input": "hello", "tools": TOOLS}


@pytest.fixture
def fake() -> Iterator[ScriptedVerifier]:
    with ScriptedVerifier() as made:
        made.chat_format = pb.ChatFormat(
            tool_calls=pb.TOOL_CALL_FORMAT_HERMES, reasoning_begin="<think>", reasoning_end="</think>"
        )
        made.answer = ANSWER
        yield made


def told(output: Any) -> list[Any]:
    found: list[Any] = []
    for item in output:
        if item.type == "function_call":
            found.append((item.type, item.name, item.arguments, item.status))
        else:
            found.append((item.type, item.content[0].text, item.status))
    return found


EXPECTED = [
    ("reasoning", "Rome?", "completed"),
    ("message", "Let me see.", "completed"),
    ("function_call", "weather", '{"city": "Rome"}', "completed"),
]


async def test_items(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    done = await client.responses.create(**ASKED, instructions="be kind", max_output_tokens=99)
    assert told(done.output) == EXPECTED
    assert (done.status, done.output_text) == ("completed", "Let me see.")
    assert done.id.startswith("resp_")
    assert done.usage is not None and done.usage.output_tokens == len(ANSWER)
    sent = fake.requests[0]
    assert [(each.role, each.content) for each in sent.messages.messages] == [("system", "be kind"), ("user", "hello")]
    assert sent.max_tokens == 99 and sent.messages.tools[0].name == "weather"


async def test_empty_instructions_are_none(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    """They are no system message, for which templates would leave out their own."""
    await client.responses.create(**ASKED, instructions="")
    assert [(each.role, each.content) for each in fake.requests[0].messages.messages] == [("user", "hello")]


async def test_events(client: openai.AsyncOpenAI) -> None:
    texts: dict[str, str] = {}
    types: list[str] = []
    async for event in await client.responses.create(**ASKED, stream=True):
        assert event.sequence_number == len(types)
        types.append(event.type)
        if event.type.endswith(".delta"):
            delta: Any = event
            texts[delta.item_id] = texts.get(delta.item_id, "") + delta.delta
        if event.type == "response.completed":
            assert told(event.response.output) == EXPECTED
            assert [texts[item.id or ""] for item in event.response.output] == [
                "Rome?", "Let me see.", '{"city": "Rome"}',
            ]  # fmt: skip
    assert types[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert types[-1] == "response.completed"
    assert [types.count(f"response.output_item.{each}") for each in ("added", "done")] == [3, 3]
    async with client.responses.stream(**ASKED) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert told(final.output) == EXPECTED


async def test_text_is_added_before_it_grows(client: openai.AsyncOpenAI) -> None:
    """OpenAI's JavaScript client fails at text of a part that no event has added, of reasoning as of a message."""
    found: dict[str, list[str]] = {}
    async for event in await client.responses.create(**ASKED, stream=True):
        if event.type.startswith(("response.content_part.", "response.reasoning_text.", "response.output_text.")):
            told: Any = event
            found.setdefault(told.item_id, []).append(event.type.removeprefix("response."))
            assert getattr(told, "part", None) is None or told.part.type in ("reasoning_text", "output_text")
    reasoning, message = found.values()
    for kind, types in (("reasoning_text", reasoning), ("output_text", message)):
        assert types[0] == "content_part.added" and set(types[1:-2]) == {f"{kind}.delta"}
        assert types[-2:] == [f"{kind}.done", "content_part.done"]


async def test_an_answer_that_is_cut_off(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    fake.answer, fake.finish = "half an", pb.FINISH_REASON_LENGTH
    done = await client.responses.create(**ASKED)
    assert done.status == "incomplete" and done.incomplete_details is not None
    assert done.incomplete_details.reason == "max_output_tokens"
    assert told(done.output) == [("message", "half an", "incomplete")]


async def test_the_output_is_the_next_input(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    done = await client.responses.create(**ASKED)
    items: Any = [{"role": "user", "content": "hello"}, *(item.to_dict() for item in done.output)]
    items.append({"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "warm"})
    await client.responses.create(**ASKED | {"input": items})
    user, assistant, tool = fake.requests[1].messages.messages
    assert (user.content, assistant.content, assistant.reasoning) == ("hello", "Let me see.", "Rome?")
    assert [(each.name, each.arguments) for each in assistant.tool_calls] == [("weather", '{"city": "Rome"}')]
    assert (tool.content, tool.tool_call_id, tool.name) == ("warm", assistant.tool_calls[0].id, "weather")


async def test_all_reasoning_of_an_answer_is_the_next_input(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    fake.chat_format = pb.ChatFormat(tool_calls=pb.TOOL_CALL_FORMAT_HARMONY)
    parts = [("analysis", "Rome? "), ("commentary", "Let me see."), ("analysis", "A call.")]
    fake.answer = "<|start|>assistant".join(f"<|channel|>{name}<|message|>{text}<|end|>" for name, text in parts)
    fake.answer += "<|start|>assistant<|channel|>commentary to=functions.weather<|message|>{}<|call|>"
    done = await client.responses.create(**ASKED)
    assert [item.type for item in done.output] == ["reasoning", "message", "reasoning", "function_call"]
    items: Any = [{"role": "user", "content": "hello"}, *(item.to_dict() for item in done.output)]
    await client.responses.create(**ASKED | {"input": items})
    _, assistant = fake.requests[1].messages.messages
    assert (assistant.reasoning, assistant.content) == ("Rome? A call.", "Let me see.")


async def test_a_form(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "it", "schema": {"type": "object"}}}
    await client.responses.create(model="fake", input="hello", text=form)
    assert fake.requests[0].structured_output.json_schema == '{"type": "object"}'


async def test_a_stream_says_its_form(client: openai.AsyncOpenAI) -> None:
    """LangChain reads a streamed text as an instance of the form only if the last event says that there is one."""
    form: Any = {"format": {"type": "json_schema", "name": "it", "schema": {"type": "object"}, "strict": True}}
    for asked, expected in (({"text": form}, form), ({}, {"format": {"type": "text"}})):
        stream = await client.responses.create(model="fake", input="hello", stream=True, **asked)
        *_, last = [event async for event in stream]
        assert last.type == "response.completed" and last.response.text is not None
        assert last.response.text.to_dict() == expected


async def test_a_form_and_tools(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "it", "schema": {"type": "object", "title": "Answer"}}}
    fake.answer = '<think>\nHm\n</think>\n\n{"a": 1}'
    done = await client.responses.create(**ASKED, text=form)
    assert told(done.output) == [("reasoning", "Hm", "completed"), ("message", '{"a": 1}', "completed")]
    async with client.responses.stream(**ASKED, text=form) as stream:
        assert told((await stream.get_final_response()).output) == told(done.output)
    fake.answer = ANSWER.replace("Let me see.\n", "")
    done = await client.responses.create(**ASKED, text=form)
    assert told(done.output) == [EXPECTED[0], EXPECTED[2]]
    for request in fake.requests:
        assert "Answer" in request.structured_output.lark and "weather" in request.structured_output.lark


@pytest.mark.parametrize(
    "other",
    [{"type": "web_search"}, {"type": "custom", "name": "apply_patch", "format": {"type": "grammar"}},
     {"type": "local_shell"}, {"type": "mcp", "server_label": "a", "server_url": "http://b"}],
)  # fmt: skip
async def test_a_tool_that_is_no_function_is_left_out(
    client: openai.AsyncOpenAI, fake: ScriptedVerifier, other: Any
) -> None:
    done = await client.responses.with_raw_response.create(**ASKED | {"tools": [other, *TOOLS]})
    assert done.headers["x-draftwire-left-out"] == f"tools[0]({other['type']})"
    assert [tool.name for tool in fake.requests[0].messages.tools] == [tool["name"] for tool in TOOLS]
    assert told(done.parse().output) == EXPECTED


ROUTE: Any = {
    "type": "namespace",
    "name": "mcp__maps",
    "tools": [{"type": "function", "name": "route", "parameters": {"type": "object"}}, {"type": "custom", "name": "a"}],
}
"""A tool of an MCP server, as Codex sends it."""


async def test_functions_in_a_namespace_are_called(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    fake.answer = '<tool_call>\n{"name": "mcp__maps__route", "arguments": {"to": "Rome"}}\n</tool_call>'
    asked = ASKED | {"tools": [*TOOLS, ROUTE]}
    done = await client.responses.with_raw_response.create(**asked)
    assert done.headers["x-draftwire-left-out"] == "tools[1].tools[1](custom)"
    assert [tool.name for tool in fake.requests[0].messages.tools] == ["weather", "mcp__maps__route"]
    call: Any = done.parse().output[0].to_dict()
    assert (call["namespace"], call["name"], call["arguments"]) == ("mcp__maps", "route", '{"to": "Rome"}')
    streamed = [each async for each in await client.responses.create(**asked, stream=True)]
    items: Any = [each.item.to_dict() for each in streamed if each.type.startswith("response.output_item.")]
    assert [(item["namespace"], item["name"]) for item in items] == [("mcp__maps", "route")] * 2
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "south"}
    await client.responses.create(**asked | {"input": [{"role": "user", "content": "hello"}, call, result]})
    _, assistant, tool = fake.requests[2].messages.messages
    assert [assistant.tool_calls[0].name, tool.name] == ["mcp__maps__route"] * 2


SEARCHES: Any = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "Rome"}},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "a", "tools": []},
]


async def test_items_of_openais_own_tools_are_left_out(client: openai.AsyncOpenAI, fake: ScriptedVerifier) -> None:
    """A session that moves here from OpenAI has them."""
    items: Any = [{"role": "user", "content": "hello"}, *SEARCHES, {"role": "user", "content": "again"}]
    done = await client.responses.with_raw_response.create(**ASKED | {"input": items})
    assert done.headers["x-draftwire-left-out"] == "input[1](web_search_call), input[2](mcp_list_tools)"
    assert [each.content for each in fake.requests[0].messages.messages] == ["hello", "again"]


async def test_an_image_that_a_tool_returns_does_not_end_the_session(
    client: openai.AsyncOpenAI, fake: ScriptedVerifier
) -> None:
    """Codex offers a tool that opens images to every model that it does not know."""
    parts = [{"type": "input_text", "text": "Opened. "}, {"type": "input_image", "image_url": "data:image/png;base64,"}]
    items: Any = [
        {"role": "user", "content": "hello"},
        {"type": "function_call", "call_id": "c1", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": parts},
    ]
    done = await client.responses.with_raw_response.create(**ASKED | {"input": items})
    assert done.headers["x-draftwire-left-out"] == "input[2].output[1](input_image)"
    result = fake.requests[0].messages.messages[-1]
    assert result.content == "Opened. [input_image left out: the model reads text alone]"


async def test_an_image_that_a_tool_returns_and_a_user_sends_does_not_end_the_session(
    http: httpx.AsyncClient, fake: ScriptedVerifier
) -> None:
    """So litellm does for Claude Code; an image behind an answer is the user's own, and refused as before."""
    image = {"type": "input_image", "image_url": "data:image/png;base64,"}
    sent = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Of a tool: "}, image]}
    items: list[Any] = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "c1", "name": "view_image", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "(see the next message)"},
        sent,
    ]
    done = await http.post("/v1/responses", json={"input": items})
    assert done.headers["x-draftwire-left-out"] == "input[3].content[1](input_image)"
    last = fake.requests[0].messages.messages[-1]
    assert (last.role, last.content) == ("user", "Of a tool: [input_image left out: the model reads text alone]")
    items += [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A cat."}]}, sent]
    refused = await http.post("/v1/responses", json={"input": items})
    assert refused.json()["error"]["param"] == "input[5].content[1].type"


@pytest.mark.parametrize(
    ("told", "result"),
    [({"output": "warm", "error": None}, "warm"), ({"output": None, "error": "no such city"}, "no such city"),
     ({"error": {"code": 404}}, '{"code": 404}'), ({}, "")],
)  # fmt: skip
async def test_calls_by_openais_servers_keep_their_results(
    client: openai.AsyncOpenAI, fake: ScriptedVerifier, told: dict[str, Any], result: str
) -> None:
    call: Any = {"type": "mcp_call", "id": "mcp_1", "server_label": "a", "name": "weather", "arguments": "{}"}
    items: Any = [{"role": "user", "content": "hello"}, call | told, {"role": "assistant", "content": "So."}]
    done = await client.responses.with_raw_response.create(**ASKED | {"input": items})
    assert "x-draftwire-left-out" not in done.headers
    _, assistant, tool, last = fake.requests[0].messages.messages
    assert [(each.id, each.name, each.arguments) for each in assistant.tool_calls] == [("mcp_1", "weather", "{}")]
    assert (tool.tool_call_id, tool.name, tool.content, last.content) == ("mcp_1", "weather", result, "So.")


async def test_what_is_not_asked_for_is_not_left_out(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/responses", json=ASKED | {"background": False, "previous_response_id": None})
    assert response.status_code == 200 and "x-draftwire-left-out" not in response.headers


@pytest.mark.parametrize("output", ["custom_tool_call_output", "local_shell_call_output", "function_call_output"])
async def test_calls_of_other_kinds_are_calls(client: openai.AsyncOpenAI, fake: ScriptedVerifier, output: str) -> None:
    items: Any = [
        {"role": "user", "content": "hello"},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c2", "status": "completed", "action": ACTION},
        {"type": output, "call_id": "c1", "output": "done"},
        {"type": output, "id" if output.startswith("local") else "call_id": "c2", "output": "a.py"},
    ]
    done = await client.responses.with_raw_response.create(**ASKED | {"input": items})
    assert "x-draftwire-left-out" not in done.headers
    _, assistant, *results = fake.requests[0].messages.messages
    assert [(each.id, each.name, json.loads(each.arguments)) for each in assistant.tool_calls] == [
        ("c1", "apply_patch", {"input": "*** Begin"}), ("c2", "local_shell", ACTION),
    ]  # fmt: skip
    assert [(each.name, each.content) for each in results] == [("apply_patch", "done"), ("local_shell", "a.py")]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "input_text"}]}]},
            "input[1].content[0].text",
        ),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
        ({"input": [{"role": "judge", "content": "a"}]}, "input[0].role"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input"),
        ({"input": [{"type": 5}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": "x"}]}, "input[1].type"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "y"}]}, "input[0].arguments"),
        (
            {"input": [{"type": "function_call_output", "call_id": "x", "output": [{"text": "a"}]}]},
            "input[0].output[0].type",
        ),
        ({"input": ["a"]}, "input[0]"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input[0].call_id"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].type"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": TOOLS * 2}, "tools[1].name"),
        ({"tools": [*TOOLS, ROUTE, ROUTE]}, "tools[2].tools[0].name"),
        ({"tools": [ROUTE | {"tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [ROUTE | {"tools": TOOLS * 513}] * 2}, "tools"),
        ({"tool_choice": {"type": "function", "name": "rm"}}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"n": 2}, "n"),
        ({"max_tokens": 9}, "max_tokens"),
        ({"tools": [], "text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ],
)
async def test_bad_requests_are_named(http: httpx.AsyncClient, body: dict[str, Any], param: str) -> None:
    response = await http.post("/v1/responses", json={"input": "hello", "tools": TOOLS} | body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"previous_response_id": "resp_1"}, "no response is kept: input takes the whole conversation"),
        ({"max_tokens": 9}, "is max_output_tokens here"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "send the item itself, as clients such as the AI SDK"),
        ({"response_format": {"type": "json_object"}}, "is text.format here"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "requires tools of type function"),
    ],
)
async def test_there_is_something_in_its_place(http: httpx.AsyncClient, body: dict[str, Any], words: str) -> None:
    response = await http.post("/v1/responses", json={"input": "hello"} | body)
    assert words in response.json()["error"]["message"]
