"""Encodes conversations: messages, tools, and the calls of tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypedDict

from draftwire._messages import option_types
from draftwire._types.options import GenerateOptions
from draftwire._types.quoting import quoted
from draftwire.errors import invalid_field
from draftwire.v1 import verifier_service_pb2 as pb

Messages = Iterable[Mapping[str, Any]]
"""A conversation, oldest message first: mappings with ``role`` and ``content``, and where they apply ``tool_calls``,
``tool_call_id``, ``name`` and ``reasoning_content``, as in OpenAI's API. A content is a text or a list of parts
``{"type": "text", "text": ...}``, which are joined. It may be None or missing if there are ``tool_calls``."""
Tools = Iterable[Mapping[str, Any]]
"""Functions that the assistant may call, as in OpenAI's API: ``{"type": "function", "function": {"name": ...}}``."""
_KNOWN = {"role", "content", "tool_calls"}
_FIELDS = {"tool_call_id": "tool_call_id", "name": "name", "reasoning_content": "reasoning"}
"""Texts that a message may have, by the names of the contract's fields."""


class ConversationOptions(TypedDict, total=False):
    """How the chat template renders a conversation."""

    tools: Tools | None
    """Functions that the assistant may call, as in OpenAI's API, for the template to render. The calls are part of the
    answer's text, spelled as ``VerifierInfo.chat_format`` says; the gateway reads them."""
    chat_template_kwargs: Mapping[str, Any] | None
    """Further variables for the chat template, such as ``enable_thinking``; the template reads those of
    ``ChatFormat.template_variables``."""
    add_generation_prompt: bool
    """Whether the prompt ends with what begins the assistant's answer; default True."""
    continue_final_message: bool
    """Continue the last message, which is the assistant's, instead of answering it; default False."""


class ChatOptions(GenerateOptions, ConversationOptions, total=False):
    """Keyword parameters of one request with a conversation."""


class Conversation(NamedTuple):
    """A conversation, and its ``ConversationOptions``."""

    messages: Messages
    tools: Tools | None = None
    chat_template_kwargs: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


def conversation_message(conversation: Conversation) -> pb.ChatMessages:
    """Returns the message for a conversation.

    Raises:
        InvalidFieldError: a message lacks role or content, or has an unknown key or a part that is no text.
        TypeError: a message or one of its parts has the wrong type, or something is no value of JSON.
    """
    messages, tools, variables, generation_prompt, continues = conversation
    found = pb.ChatMessages(continue_final_message=option_types.flag("continue_final_message", continues))
    if not option_types.flag("add_generation_prompt", generation_prompt):
        found.add_generation_prompt = False
    found.chat_template_kwargs = variables_text(variables)
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise option_types.wrong_type("messages", "a list of mappings with role and content", messages)
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise option_types.wrong_type(f"messages[{index}]", "a mapping with role and content", message)
        _add_message(found.messages.add(), f"messages[{index}]", message)
    for index, tool in enumerate(tools or ()):
        function = _function(f"tools[{index}]", tool)
        parameters = function.get("parameters")
        added = found.tools.add(
            name=option_types.text(f"tools[{index}].function.name", function.get("name")),
            parameters="" if parameters is None else _json(f"tools[{index}].function.parameters", parameters),
        )
        if function.get("description") is not None:
            added.description = option_types.text(f"tools[{index}].function.description", function["description"])
    return found


def variables_text(variables: Mapping[str, Any] | None) -> str:
    """Returns variables for a chat template as the contract has them.

    Raises:
        TypeError: it is no mapping of texts to values of JSON.
    """
    if variables is None:
        return ""
    name = "chat_template_kwargs"
    if not isinstance(variables, Mapping) or not all(isinstance(key, str) for key in variables):
        raise option_types.wrong_type(name, "a mapping of names to values", variables)
    return _json(name, dict(variables)) if variables else ""


def _json(name: str, value: Any) -> str:
    """Returns a value as JSON text. NaN and the infinities are refused, which JSON does not have."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{name}: expected values of JSON: {error}") from error


def _add_message(added: pb.ChatMessage, name: str, message: Mapping[str, Any]) -> None:
    content = message.get("content")
    lacks = "role" not in message or (content is None and not message.get("tool_calls"))
    if lacks or not set(message) <= _KNOWN | set(_FIELDS):
        more = ", ".join(sorted({*_FIELDS, "tool_calls"}))
        raise invalid_field(f"messages.{name}", f"expected the keys role and content, and if needed {more}")
    added.role = option_types.text(f"{name}.role", message["role"])
    added.content = "" if content is None else _content(f"{name}.content", content)
    for key, field in _FIELDS.items():
        if message.get(key) is not None:
            setattr(added, field, option_types.text(f"{name}.{key}", message[key]))
    for index, call in enumerate(message.get("tool_calls") or ()):
        place = f"{name}.tool_calls[{index}]"
        function = _function(place, call)
        arguments = function.get("arguments", "{}")
        added.tool_calls.add(
            id=option_types.text(f"{place}.id", call.get("id", "")),
            name=option_types.text(f"{place}.function.name", function.get("name")),
            arguments=arguments if isinstance(arguments, str) else _json(f"{place}.function.arguments", arguments),
        )


def _content(name: str, value: Any) -> str:
    """Returns a content as one text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise option_types.wrong_type(name, "a string or a list of parts of the type text", value)
    texts: list[str] = []
    for index, part in enumerate(value):
        if not isinstance(part, Mapping):
            raise option_types.wrong_type(f"{name}[{index}]", "a mapping with type and text", part)
        if part.get("type") != "text":
            kind = quoted(part.get("type"))
            raise invalid_field(f"messages.{name}[{index}].type", f"expected 'text', the only kind served, got {kind}")
        texts.append(option_types.text(f"{name}[{index}].text", part.get("text")))
    return "".join(texts)


def _function(name: str, value: Any) -> Mapping[str, Any]:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping):
        raise option_types.wrong_type(name, "a mapping with function", value)
    return function
