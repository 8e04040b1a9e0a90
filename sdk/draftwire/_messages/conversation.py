"""Encodes conversations: messages, tools, and the calls of tools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from draftwire._messages import option_types
from draftwire.errors import invalid_field
from draftwire.v1 import verifier_service_pb2 as pb

Messages = Iterable[Mapping[str, Any]]
"""A conversation, oldest message first: mappings with ``role`` and ``content``, and where they apply ``tool_calls``,
``tool_call_id``, ``name`` and ``reasoning_content``, as in OpenAI's API."""
Tools = Iterable[Mapping[str, Any]]
"""Functions that the assistant may call, as in OpenAI's API: ``{"type": "function", "function": {"name": ...}}``."""

_REQUIRED = {"role", "content"}
_FIELDS = {"tool_call_id": "tool_call_id", "name": "name", "reasoning_content": "reasoning"}
"""Texts that a message may have, by the names of the contract's fields."""


def message_list(messages: Messages, tools: Tools | None = None) -> pb.ChatMessages:
    """Returns the message for a conversation.

    Raises:
        InvalidFieldError: a message lacks role or content, or has an unknown key.
        TypeError: a message or one of its parts has the wrong type.
    """
    found = pb.ChatMessages()
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
            parameters="" if parameters is None else json.dumps(parameters, ensure_ascii=False),
        )
        if function.get("description") is not None:
            added.description = option_types.text(f"tools[{index}].function.description", function["description"])
    return found


def _add_message(added: pb.ChatMessage, name: str, message: Mapping[str, Any]) -> None:
    if not _REQUIRED <= set(message) <= _REQUIRED | set(_FIELDS) | {"tool_calls"}:
        more = ", ".join(sorted({*_FIELDS, "tool_calls"}))
        raise invalid_field(f"messages.{name}", f"expected the keys role and content, and if needed {more}")
    added.role, added.content = (option_types.text(f"{name}.{key}", message[key]) for key in ("role", "content"))
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
            arguments=arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        )


def _function(name: str, value: Any) -> Mapping[str, Any]:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping):
        raise option_types.wrong_type(name, "a mapping with function", value)
    return function
