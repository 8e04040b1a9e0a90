"""Tools for chat templates that render none: tools, calls and results of a conversation as texts of its messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from speculative_engine.text.chat_format import ChatFormat

Message = Mapping[str, Any]

_INSTRUCTIONS = """\
# Tools

You can call functions to help with the user's request. These are their signatures, one JSON object a line:
<tools>
{tools}
</tools>

To call a function, answer with a JSON object that has its name and its arguments, between these tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>
Write one such block for each call. The results are given to you between <tool_response> and </tool_response>.
If no function is needed, answer as usual."""


def with_tools(
    chat_format: ChatFormat, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[Sequence[Message], Sequence[Mapping[str, Any]]]:
    """Returns a conversation and its tools in the form that a chat template renders completely.

    A template without tools gets their description in the system message, or before the first user's message if it
    takes no system message. Calls and results that it leaves out become the texts of messages of the assistant and the
    user.
    """
    calls = chat_format.lacks_calls and any(each.get("tool_calls") for each in messages)
    results = chat_format.lacks_results and any(each["role"] == "tool" for each in messages)
    described = bool(tools) and not chat_format.tools
    if not (calls or results or described):
        return messages, tools
    found: list[dict[str, Any]] = []
    returned = False
    """Whether the last message has results of calls."""
    for message in messages:
        turn = _with_calls(chat_format, message) if calls else dict(message)
        returns = results and turn["role"] == "tool"
        if returns:
            turn = {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
        if returned and turn["role"] == "user":  # many templates want turns to alternate
            found[-1]["content"] += "\n" + turn["content"]
        else:
            found.append(turn)
        returned = returns
    return (_with_description(chat_format, found, tools), ()) if described else (found, tools)


def _with_calls(chat_format: ChatFormat, message: Message) -> dict[str, Any]:
    """Returns a message with its calls in its text."""
    turn = dict(message)
    called = turn.pop("tool_calls", None)
    if called and chat_format.spelling is not None:
        functions = [call["function"] for call in called]
        spelled = chat_format.spelling.spell([(each["name"], each["arguments"]) for each in functions])
        turn["content"] = f"{turn['content']}\n{spelled}" if turn["content"] else spelled
    return turn


def _with_description(
    chat_format: ChatFormat, turns: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Returns messages with a description of the tools."""
    description = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if turns[0]["role"] == "system":
        text = "\n\n".join(filter(None, [turns[0]["content"], description]))
        return [turns[0] | {"content": text}, *turns[1:]]
    if not chat_format.lacks_system:
        return [{"role": "system", "content": description}, *turns]
    first = turns[0]
    if first["role"] != "user":
        return [{"role": "user", "content": description}, *turns]
    return [first | {"content": f"{description}\n\n{first['content']}"}, *turns[1:]]
