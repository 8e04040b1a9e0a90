"""The format of an assistant's answers, found by rendering a trial conversation with the chat template."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

_DESCRIPTION = "Answers the trial"
_TOOL = {
    "type": "function",
    "function": {
        "name": "trial_tool",
        "description": _DESCRIPTION,
        "parameters": {"type": "object", "properties": {"trial_key": {"type": "integer"}}},
    },
}
_USER = {"role": "user", "content": "Begin the trial."}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        # Templates of Mistral demand ids of nine letters.
        {
            "id": "trial0001",
            "type": "function",
            "function": {"name": "trial_tool", "arguments": {"trial_key": 1}},
        }
    ],
}
_RESULT = {"role": "tool", "content": "done", "tool_call_id": "trial0001", "name": "trial_tool"}


class ToolCallFormat(enum.Enum):
    """A way to spell tool calls; the contract describes each."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    MISTRAL_ARGS = "mistral_args"
    HARMONY = "harmony"


_SPELLINGS = (  # the first that fits counts
    (ToolCallFormat.HARMONY, r"to=functions\.trial_tool"),
    (ToolCallFormat.MISTRAL_ARGS, r"\[TOOL_CALLS\]\s*trial_tool(\[CALL_ID\]\w*)?\[ARGS\]\s*\{"),
    (ToolCallFormat.MISTRAL, r'\[TOOL_CALLS\]\s*\[\s*\{[^\]]*"arguments"'),
    (ToolCallFormat.HERMES, r'<tool_call>\s*\{(?=[^<]*"name": *"trial_tool")[^<]*"arguments"[^<]*\}\s*</tool_call>'),
    (ToolCallFormat.LLAMA, r'\{\s*"name": *"trial_tool",\s*"parameters": *\{'),
)
"""How a template spells the call of the trial."""
_MARKERS = {
    ToolCallFormat.HERMES: ("<tool_call>", "</tool_call>"),
    ToolCallFormat.LLAMA: ("<|python_tag|>",),
    ToolCallFormat.MISTRAL: ("[TOOL_CALLS]",),
    ToolCallFormat.MISTRAL_ARGS: ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    ToolCallFormat.HARMONY: ("<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>", "<|call|>"),
}
_REASONING = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""Pairs of marks around reasoning that templates know."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How an assistant's answer spells tool calls and reasoning."""

    tools: bool = False
    """Whether the template renders tools."""
    tool_calls: ToolCallFormat | None = None
    """How calls are spelled; None if that is unknown."""
    reasoning: tuple[str, str] | None = None
    """The marks around the reasoning before an answer."""
    reasoning_open: bool = False
    """Whether the prompt ends within the reasoning."""
    marker_ids: Mapping[str, int] = field(default_factory=dict)
    """Markers that are tokens of their own."""
    special_markers: bool = False
    """Whether one of them is a special token."""
    variables: Set[str] = frozenset()
    """Names of the variables that the template reads, besides messages, tools and special tokens."""


Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
"""Renders messages and tools up to the start of the assistant's answer; may raise anything."""


def find_chat_format(template: str, render: Render, added: Mapping[str, tuple[int, bool]]) -> ChatFormat:
    """Returns the format of a chat template. added: tokens of their own, by name, with their ids and whether they are
    special."""
    prompt = _tried(render, [_USER], [])
    tools = _DESCRIPTION in _tried(render, [_USER], [_TOOL])
    calls = None
    if tools:
        spelled = _tried(render, [_USER, _CALL, _RESULT], [_TOOL]) or _tried(render, [_USER, _CALL], [_TOOL])
        calls = next((each for each, spelling in _SPELLINGS if re.search(spelling, spelled)), None)
    reasoning = None
    if calls is not ToolCallFormat.HARMONY:  # its channels tell reasoning apart
        reasoning = next((each for each in _REASONING if each[1] in template), None)
    markers = (*_MARKERS.get(calls, ()), *(reasoning or ())) if calls is not None else reasoning or ()
    found = {marker: added[marker] for marker in markers if marker in added}
    return ChatFormat(
        tools=tools,
        tool_calls=calls,
        reasoning=reasoning,
        reasoning_open=reasoning is not None and prompt.rstrip().endswith(reasoning[0]),
        marker_ids={marker: token for marker, (token, _) in found.items()},
        special_markers=any(special for _, special in found.values()),
    )


def _tried(render: Render, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rendered text; an empty one if the template rejects the trial, as templates without tools may."""
    try:
        return render(messages, tools)
    except Exception:  # noqa: BLE001 - templates are programs of the checkpoint and may raise anything
        return ""
