"""Conversations with tools, as chat templates read them."""

from typing import Any

import pytest

from draftwire._messages.conversation import Conversation, conversation_message
from draftwire.errors import InvalidFieldError
from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.runtime.errors import ServiceError
from verifier_service.reading.chat import chat_bytes, has_broken_calls, template_messages, template_tools

FUNCTION: dict[str, Any] = {
    "name": "weather",
    "description": "Tells it.",
    "parameters": {"type": "object", "properties": {"a": {}}},
}
CALL: dict[str, Any] = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "content": "warm", "tool_call_id": "c1", "name": "weather"},
]


def test_templates_read_what_the_client_sent() -> None:
    chat = conversation_message(Conversation(MESSAGES, [{"type": "function", "function": FUNCTION}]))
    user, assistant, tool = template_messages(chat)
    assert user == MESSAGES[0] and tool == MESSAGES[2]
    assert assistant["tool_calls"] == [CALL | {"function": {"name": "weather", "arguments": {"a": 1}}}]
    assert {assistant[name] for name in ("reasoning_content", "thinking", "reasoning", "tool_plan")} == {"hm"}
    assert template_tools(chat) == [{"type": "function", "function": FUNCTION}]
    assert list(template_tools(chat)[0]["function"]) == ["name", "description", "parameters"]


def test_every_text_counts() -> None:
    chat = conversation_message(Conversation(MESSAGES, [{"type": "function", "function": FUNCTION}]))
    before = chat_bytes(chat)
    chat.tools[0].parameters += " " * 7
    chat.messages[1].tool_calls[0].arguments += " " * 5
    chat.messages[1].reasoning += "ü"
    assert chat_bytes(chat) == before + 7 + 5 + 2


@pytest.mark.parametrize("arguments", ["[1]", "{", '{"text": "data", "urlp": "', "[" * 100_000])
def test_arguments_that_are_no_object_stay_text(arguments: str) -> None:
    chat = conversation_message(Conversation(MESSAGES))
    chat.messages[1].tool_calls[0].arguments = arguments
    assert has_broken_calls(chat)
    assert template_messages(chat)[1]["tool_calls"][0]["function"]["arguments"] == arguments
    objects = template_messages(chat, as_objects=True)
    assert objects[1]["tool_calls"][0]["function"]["arguments"] == {"arguments": arguments}


@pytest.mark.parametrize("arguments", ["", " ", "null", "{}"])
def test_no_arguments(arguments: str) -> None:
    chat = conversation_message(Conversation(MESSAGES))
    chat.messages[1].tool_calls[0].arguments = arguments
    assert not has_broken_calls(chat)
    assert template_messages(chat)[1]["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    ("tool", "field"),
    [(pb.ChatTool(), "name"), (pb.ChatTool(name="a", parameters="3"), "parameters")],
)
def test_a_tool_that_is_none_is_named(tool: pb.ChatTool, field: str) -> None:
    with pytest.raises(ServiceError, match=rf"messages.tools\[0\].{field}"):
        template_tools(pb.ChatMessages(tools=[tool]))


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(InvalidFieldError, match="expected the keys role and content"):
        conversation_message(Conversation([{"role": "user", "content": "x", "colour": "red"}]))
    with pytest.raises(TypeError, match=r"tools\[0\]: expected a mapping with function"):
        conversation_message(Conversation(MESSAGES, [{"type": "function"}]))
