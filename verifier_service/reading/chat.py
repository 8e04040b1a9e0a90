"""The conversation of a request in the form that chat templates read."""

from __future__ import annotations

import json
from typing import Any

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire_core.engine.text.call_spelling import ArgumentStyle, CallSpelling
from draftwire_core.engine.text.chat_format import ChatFormat, ToolCallFormat
from draftwire_core.engine.text.chat_rendering import RESERVED, ChatRendering
from draftwire_core.runtime.errors import invalid_field

_FORMATS = {
    ToolCallFormat.HERMES: pb.TOOL_CALL_FORMAT_HERMES,
    ToolCallFormat.LLAMA: pb.TOOL_CALL_FORMAT_LLAMA,
    ToolCallFormat.MISTRAL: pb.TOOL_CALL_FORMAT_MISTRAL,
    ToolCallFormat.MISTRAL_ARGS: pb.TOOL_CALL_FORMAT_MISTRAL_ARGS,
    ToolCallFormat.HARMONY: pb.TOOL_CALL_FORMAT_HARMONY,
    ToolCallFormat.SPELLED: pb.TOOL_CALL_FORMAT_SPELLED,
}
_STYLES = {
    ArgumentStyle.OBJECT: pb.CALL_ARGUMENT_STYLE_OBJECT,
    ArgumentStyle.JSON: pb.CALL_ARGUMENT_STYLE_JSON,
    ArgumentStyle.PARAMETERS: pb.CALL_ARGUMENT_STYLE_PARAMETERS,
    ArgumentStyle.KEYWORDS: pb.CALL_ARGUMENT_STYLE_KEYWORDS,
    ArgumentStyle.BARE_KEYS: pb.CALL_ARGUMENT_STYLE_BARE_KEYS,
}


def chat_bytes(chat: pb.ChatMessages) -> int:
    """Returns the size of a conversation's texts."""
    texts = [
        text
        for each in chat.messages
        for text in (each.role, each.content, each.reasoning, each.name, each.tool_call_id)
    ]
    texts += [
        text for each in chat.messages for call in each.tool_calls for text in (call.id, call.name, call.arguments)
    ]
    texts += [text for each in chat.tools for text in (each.name, each.description, each.parameters)]
    return sum(len(text.encode()) for text in [*texts, chat.chat_template_kwargs])


def template_messages(chat: pb.ChatMessages, *, as_objects: bool = False) -> list[dict[str, Any]]:
    """Returns the messages as templates read them: keys that a message lacks are absent.

    A call's arguments are an object where their text is one. Other text, as a model that was cut off writes it, stays
    text. as_objects: gives ``{"arguments": TEXT}`` in its place, for templates that read objects alone.
    """
    return [_message(message, as_objects=as_objects) for message in chat.messages]


def read_rendering(chat: pb.ChatMessages) -> ChatRendering:
    """Returns how a conversation is to be rendered. Raises ServiceError."""
    continues = chat.continue_final_message
    if continues:
        if chat.HasField("add_generation_prompt") and chat.add_generation_prompt:
            raise invalid_field("messages.continue_final_message", "cannot be combined with add_generation_prompt")
        if chat.messages and chat.messages[-1].role != "assistant":
            raise invalid_field(
                "messages.continue_final_message",
                f"needs a last message of the assistant to continue, got one of the role {chat.messages[-1].role[:64]}",
            )
        if chat.messages and chat.messages[-1].tool_calls:
            raise invalid_field("messages.continue_final_message", "cannot continue a message with tool_calls")
    return ChatRendering(
        variables=read_variables("messages.chat_template_kwargs", chat.chat_template_kwargs),
        generation_prompt=chat.add_generation_prompt if chat.HasField("add_generation_prompt") else True,
        continues=continues,
    )


def read_variables(field: str, text: str) -> dict[str, Any]:
    """Returns the variables for a chat template from their JSON text. Raises ServiceError."""
    if not text:
        return {}
    variables = _json_object(field, text)
    for name in variables:
        if name in RESERVED:
            raise invalid_field(f"{field}.{name}", "is no variable for the chat template: it has a field of its own")
    if not isinstance(variables.get("documents", []), list):
        raise invalid_field(f"{field}.documents", "is not a list of objects")
    return variables


def has_broken_calls(chat: pb.ChatMessages) -> bool:
    """Whether the arguments of any call are not a JSON object."""
    return any(isinstance(_arguments(call.arguments), str) for each in chat.messages for call in each.tool_calls)


def template_tools(chat: pb.ChatMessages) -> list[dict[str, Any]]:
    """Returns the tools as templates read them. Raises ServiceError."""
    return [_tool(f"messages.tools[{index}]", tool) for index, tool in enumerate(chat.tools)]


def chat_format_message(chat_format: ChatFormat) -> pb.ChatFormat:
    """Returns a format as the contract describes it."""
    begin, end = chat_format.reasoning or ("", "")
    content_begin, content_end = chat_format.content or ("", "")
    spelling = chat_format.spelling if chat_format.tool_calls is ToolCallFormat.SPELLED else None
    return pb.ChatFormat(
        tool_calls=_FORMATS[chat_format.tool_calls] if chat_format.tool_calls else pb.TOOL_CALL_FORMAT_UNSPECIFIED,
        reasoning_begin=begin,
        reasoning_end=end,
        reasoning_open=chat_format.reasoning_open,
        marker_ids=chat_format.marker_ids,
        special_markers=chat_format.special_markers,
        template_variables=sorted(chat_format.variables),
        spelling=_spelling_message(spelling) if spelling else None,
        content_begin=content_begin,
        content_end=content_end,
    )


def _spelling_message(spelling: CallSpelling) -> pb.CallSpelling:
    return pb.CallSpelling(
        style=_STYLES[spelling.style],
        begin=spelling.begin,
        call_begin=spelling.call_begin,
        name_end=spelling.name_end,
        call_end=spelling.call_end,
        separator=spelling.separator,
        end=spelling.end,
        name_key=spelling.name_key,
        arguments_key=spelling.arguments_key,
        id_key=spelling.id_key,
        key_begin=spelling.key_begin,
        key_end=spelling.key_end,
        value_end=spelling.value_end,
        quote=spelling.quote,
    )


def _message(message: pb.ChatMessage, *, as_objects: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.HasField("name"):
        found["name"] = message.name
    if message.HasField("tool_call_id"):
        found["tool_call_id"] = message.tool_call_id
    if message.HasField("reasoning"):
        # Each template calls it one of these: Qwen's, gpt-oss's, Solar Open's, and before calls Command A's.
        found |= dict.fromkeys(("reasoning_content", "thinking", "reasoning", "tool_plan"), message.reasoning)
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": _arguments(call.arguments, as_object=as_objects),
                },
            }
            for call in message.tool_calls
        ]
    return found


def _arguments(text: str, *, as_object: bool = False) -> dict[str, Any] | str:
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        found = text
    if isinstance(found, dict):
        return found
    if found is None:
        return {}
    return {"arguments": text} if as_object else text


def _tool(field: str, tool: pb.ChatTool) -> dict[str, Any]:
    if not tool.name:
        raise invalid_field(f"{field}.name", "is empty")
    function: dict[str, Any] = {"name": tool.name}
    if tool.HasField("description"):
        function["description"] = tool.description
    schema = _json_object(f"{field}.parameters", tool.parameters) if tool.parameters else None
    function["parameters"] = schema or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def _json_object(field: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid_field(field, f"is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise invalid_field(field, "is not a JSON object")
    return found
