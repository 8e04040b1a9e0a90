"""The messages of a conversation, as chat completions have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator

from gateway_service.http.errors import GatewayError
from gateway_service.openai.fields.checks import MOST_MESSAGES, MOST_PARTS, at_most
from gateway_service.openai.fields.content import Content, read_behind_results, readable, text_of

_SYSTEM = ("system", "developer")


def _as_text(arguments: Any) -> Any:
    """Writes arguments as JSON if they are an object, as Hugging Face's conversations and Ollama's have them."""
    return json.dumps(arguments) if isinstance(arguments, dict) else arguments


class CalledFunction(BaseModel):
    """The function of a call."""

    model_config = ConfigDict(strict=True, extra="ignore")

    name: str
    arguments: Annotated[str, BeforeValidator(_as_text, json_schema_input_type=str)]
    """The call's arguments as the model wrote them: a JSON object, unless the answer was cut off."""


class ToolCall(BaseModel):
    """A call that the assistant made."""

    model_config = ConfigDict(strict=True, extra="ignore")

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow", use_attribute_docstrings=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    """Role of the speaker; `developer` counts as `system`."""
    content: Content | None = None
    """Text of the message; may be missing from one of the assistant."""
    refusal: str | None = None
    """The assistant's refusal, as OpenAI's models write it in place of the text."""
    tool_calls: Annotated[list[ToolCall], at_most(MOST_PARTS)] | None = None
    """Calls that the assistant made."""
    name: str | None = None
    """Name of the speaker, for templates that render it; a tool's message has the name of its call."""
    tool_call_id: str | None = None
    """The call whose result a tool's message is."""
    reasoning_content: str | None = None
    """The assistant's reasoning before its text, for templates that render it."""
    reasoning: str | None = None
    """The same under the name that vLLM and OpenRouter give it; `reasoning_content` counts if both are there."""
    prefix: bool | None = None
    """Of the last message, the assistant's: whether the answer continues it."""

    @model_validator(mode="before")
    @classmethod
    def _read_result(cls, message: Any) -> Any:
        if isinstance(message, dict) and message.get("role") == "tool" and isinstance(message.get("content"), list):
            return message | {"content": [readable(part) for part in message["content"]]}
        return message


Messages = Annotated[
    list[ChatMessage], at_most(MOST_MESSAGES, least=1), BeforeValidator(read_behind_results("role", "tool"))
]
"""A conversation, oldest message first."""


def unread_parts(messages: Iterable[ChatMessage]) -> list[str]:
    """Returns the names of parts that are left out, as `messages[2].content[0](image_url)`."""
    listed = ((at, each.content) for at, each in enumerate(messages) if isinstance(each.content, list))
    parts = ((at, number, part.left_out) for at, content in listed for number, part in enumerate(content))
    return [f"messages[{at}].content[{number}]({kind})" for at, number, kind in parts if kind is not None]


def conversation_of(messages: Iterable[ChatMessage]) -> list[dict[str, Any]]:
    """Returns messages in the SDK's form."""
    names: dict[str, str] = {}
    found: list[dict[str, Any]] = []
    for message in messages:
        content = (message.refusal or "") if message.content is None else text_of(message.content)
        role = "system" if message.role in _SYSTEM else message.role
        turn: dict[str, Any] = {"role": role, "content": content}
        if message.name is not None:
            turn["name"] = message.name
        if message.role == "assistant":
            if message.tool_calls:
                turn["tool_calls"] = [call.model_dump() for call in message.tool_calls]
                names |= {call.id: call.function.name for call in message.tool_calls}
            told = message.reasoning if message.reasoning_content is None else message.reasoning_content
            if told is not None:
                turn["reasoning_content"] = told
        if message.role == "tool" and message.tool_call_id is not None:
            turn |= {"tool_call_id": message.tool_call_id, "name": names[message.tool_call_id]}
        found.append(turn)
    return merged(found)


def merged(turns: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a conversation whose leading system messages are one, since many chat templates allow no second one.

    Instructions, system and developer messages thus come together, with a blank line between them.
    """
    leading = list(takewhile(lambda turn: turn["role"] == "system", turns))
    if len(leading) < 2:
        return list(turns)
    text = "\n\n".join(turn["content"] for turn in leading if turn["content"])
    return [leading[0] | {"content": text}, *turns[len(leading) :]]


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Checks what messages need from each other, and the parts that are not supported.

    Raises:
        GatewayError: a message is at fault; the error names its field.
    """
    known: set[str] = set()
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        for name in ("function_call", "audio"):
            if (message.model_extra or {}).get(name):
                param = f"{place}.{name}"
                raise GatewayError(f"{param}: is not supported", param=param, code="unsupported_parameter")
        if (message.model_extra or {}).get("partial"):
            _refuse(f"{place}.partial", "is prefix here", "unsupported_parameter")
        if message.prefix and not (message.role == "assistant" and index == len(messages) - 1):
            _refuse(f"{place}.prefix", "only the last message can be continued, and only the assistant's")
        if message.tool_calls and message.role != "assistant":
            _refuse(f"{place}.tool_calls", "only messages of the assistant have calls")
        if message.content is None and message.role != "assistant":
            _refuse(f"{place}.content", "is required", "missing_required_parameter")
        for call in message.tool_calls or ():
            known.add(call.id)
        if message.role == "tool":
            if message.tool_call_id is None:
                _refuse(f"{place}.tool_call_id", "is required", "missing_required_parameter")
            if message.tool_call_id not in known:
                _refuse(f"{place}.tool_call_id", "is not the id of a call in an earlier message")


def _refuse(param: str, message: str, code: str = "invalid_value") -> None:
    raise GatewayError(f"{param}: {message}", param=param, code=code)
