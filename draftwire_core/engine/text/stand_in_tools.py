"""Stand-ins for what chat templates do not render, as texts: tools, calls, results, system messages, messages of one
role in a row, a text between reasoning and calls, and long ids of calls."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

from draftwire_core.engine.text.chat_format import ChatFormat

Message = Mapping[str, Any]
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")

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

    A template without tools gets their description in the system message. Calls and results that a template leaves out
    become the texts of messages of the assistant and the user. A system message that it leaves out or refuses, at the
    start or later, becomes the start of the user's next message. If it refuses messages of the user in a row, these
    become one, with a blank line between their texts, and so do messages of the assistant without calls; before one of
    the assistant that begins the conversation, as a greeting, comes an empty one of the user. So it does if nobody is
    the user, and the template refuses or leaves out a system message then. Between calls or results and a message of
    the user comes a blank one of the assistant, if the template refuses them without an answer, and one without text is
    blank, if it refuses that. If it refuses a text besides reasoning and calls, the text becomes the end of the
    reasoning. If it refuses long ids of calls, they become short ones. If it renders one call of a message alone, each
    becomes a message, before its result.
    """
    if chat_format.one_call:
        messages = _one_by_one(messages)
    calls = chat_format.lacks_calls and any(each.get("tool_calls") for each in messages)
    results = chat_format.lacks_results and any(each["role"] == "tool" for each in messages)
    described = bool(tools) and not chat_format.tools
    systems = chat_format.lacks_system and (described or any(each["role"] == "system" for each in messages))
    later = chat_format.lacks_later_system and any(each["role"] == "system" for each in messages[1:])
    texts = chat_format.lacks_text and any(map(_has_reasoning_text_and_calls, messages))
    ids = chat_format.short_ids and any(each.get("tool_calls") for each in messages)
    alone = chat_format.needs_user and all(each["role"] != "user" for each in messages)
    strict = chat_format.alternates or chat_format.needs_answer or chat_format.lacks_empty
    if not (alone or calls or results or described or systems or later or texts or ids or strict):
        return messages, tools
    found: list[dict[str, Any]] = []
    joint = ""
    """Text that joins the next text to the user's last message, which holds that of another role; else empty."""
    for index, message in enumerate(_with_description(messages, tools) if described else messages):
        turn = _with_calls(chat_format, message) if calls else dict(message)
        if texts and _has_reasoning_text_and_calls(turn):
            reasoning = f"{turn['reasoning_content']}\n\n{turn['content']}"
            turn |= {"content": "", "reasoning_content": reasoning, "thinking": reasoning}
        if ids:
            turn |= _with_short_ids(turn)
        role = turn["role"]
        if results and role == "tool":
            turn = {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
        elif role == "system" and (systems or (later and index)):
            if not turn["content"]:
                continue
            turn = {"role": "user", "content": turn["content"]}
        replaced = turn["role"] != role
        between = "\n" if role == "tool" else "\n\n"
        if turn["role"] == "user" and (joint or (replaced and found and found[-1]["role"] == "user")):
            found[-1]["content"] += (joint or between) + turn["content"]  # many templates want turns to alternate
        elif not replaced and found and _is_one_turn(chat_format, found[-1], turn):
            text = "\n\n".join(filter(None, [found[-1]["content"], turn["content"]]))
            found[-1] = {**found[-1], **turn, "content": text}
        else:
            if chat_format.needs_answer and turn["role"] == "user" and found and _awaits_answer(found[-1]):
                found.append({"role": "assistant", "content": " "})  # some templates refuse an empty text
            found.append(turn)
        joint = between if replaced else ""
    begin = next((at for at, turn in enumerate(found) if turn["role"] != "system"), len(found))
    greets = chat_format.alternates and begin < len(found) and found[begin]["role"] == "assistant"
    if greets or (alone and all(turn["role"] != "user" for turn in found)):
        found.insert(begin, {"role": "user", "content": ""})
    if chat_format.lacks_empty:
        found = [each | {"content": " "} if _is_empty_answer(each) else each for each in found]
    return found, () if described else tools


def _awaits_answer(turn: Message) -> bool:
    """Whether a message makes calls or is the result of one."""
    return turn["role"] == "tool" or bool(turn.get("tool_calls"))


def _is_empty_answer(turn: Message) -> bool:
    """Whether a message of the assistant has neither a text nor calls, as one has that was cut off in its reasoning."""
    return turn["role"] == "assistant" and not (turn["content"] or turn.get("tool_calls"))


def _is_one_turn(chat_format: ChatFormat, first: Message, second: Message) -> bool:
    """Whether two messages in a row have to be one: those of the user, those of the assistant without calls, and one of
    these before calls, if the template counts a text before calls as the answer."""
    if first["role"] != second["role"] or first["role"] not in ("user", "assistant") or first.get("tool_calls"):
        return False
    return chat_format.needs_answer if second.get("tool_calls") else chat_format.alternates


def _one_by_one(messages: Sequence[Message]) -> list[Message]:
    """Returns messages with a call each; of the results behind several calls, each follows its own."""
    found: list[Message] = []
    placed = 0
    """Index behind the results that have been placed."""
    for index, message in enumerate(messages):
        called = message.get("tool_calls") or ()
        if len(called) < 2:
            if index >= placed:
                found.append(message)
            continue
        results = list(takewhile(lambda each: each["role"] == "tool", messages[index + 1 :]))
        placed = index + 1 + len(results)
        for number, call in enumerate(called):
            found.append({**(message if number == 0 else {"role": "assistant", "content": ""}), "tool_calls": [call]})
            own = next((each for each in results if each.get("tool_call_id") == call["id"]), None)
            if own is not None:
                results.remove(own)
                found.append(own)
        found += results
    return found


def _with_short_ids(message: Message) -> dict[str, Any]:
    """Returns what changes in a message whose ids of calls are shortened."""
    found: dict[str, Any] = {}
    if message.get("tool_calls"):
        found["tool_calls"] = [{**call, "id": _short_id(call["id"])} for call in message["tool_calls"]]
    if "tool_call_id" in message:
        found["tool_call_id"] = _short_id(message["tool_call_id"])
    return found


def _short_id(call: str) -> str:
    """Returns the id of a call if it is short; another one that follows from it if not."""
    return call if _SHORT_ID.fullmatch(call) else hashlib.sha256(call.encode(errors="replace")).hexdigest()[:9]


def _has_reasoning_text_and_calls(message: Message) -> bool:
    """Returns whether a message has each of the three."""
    return all(message.get(key) for key in ("content", "reasoning_content", "tool_calls"))


def _with_calls(chat_format: ChatFormat, message: Message) -> dict[str, Any]:
    """Returns a message with its calls in its text."""
    turn = dict(message)
    called = turn.pop("tool_calls", None)
    if called and chat_format.spelling is not None:
        functions = [call["function"] for call in called]
        spelled = chat_format.spelling.spell([(each["name"], each["arguments"]) for each in functions])
        turn["content"] = f"{turn['content']}\n{spelled}" if turn["content"] else spelled
    return turn


def _with_description(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Returns messages with a description of the tools in the system message."""
    description = _INSTRUCTIONS.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    first = messages[0]
    if first["role"] != "system":
        return [{"role": "system", "content": description}, *messages]
    text = "\n\n".join(filter(None, [first["content"], description]))
    return [{**first, "content": text}, *messages[1:]]
