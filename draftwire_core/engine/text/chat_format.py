"""The format of an assistant's answers, found by rendering a trial conversation with the chat template."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from draftwire_core.engine.text.call_spelling import HERMES, LFM, MARKER, CallSpelling
from draftwire_core.engine.text.spelling_search import ARGUMENTS, ID, NAMES, find_content, find_spelling

_DESCRIPTION = "Answers the trial"
_TEXT, _RULE, _RESULT = "Text of the trial.", "Rule of the trial.", "Result of the trial."
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": _DESCRIPTION,
            "parameters": {"type": "object", "properties": {key: {"type": "string"} for key in ARGUMENTS}},
        },
    }
    for name in NAMES
]
_CALLS = [
    {"id": ID.format(number), "type": "function", "function": {"name": name, "arguments": ARGUMENTS}}
    for number, name in enumerate(NAMES)
]
_KEY = next(iter(ARGUMENTS))
_SYSTEM = {"role": "system", "content": _RULE}
_USER = {"role": "user", "content": "Begin the trial."}
_PLAIN = {"role": "assistant", "content": _TEXT}
_ONE = {"role": "assistant", "content": "", "tool_calls": _CALLS[:1]}
_TWO = {"role": "assistant", "content": "", "tool_calls": _CALLS}
_REASONED = {**_ONE, "reasoning_content": _TEXT, "thinking": _TEXT}
_RETURNED = {"role": "tool", "content": _RESULT, "tool_call_id": ID.format(0), "name": NAMES[0]}
_LONG_ID = {"id": "call_of_the_trial"}
_LONG = {**_ONE, "tool_calls": [_CALLS[0] | _LONG_ID]}, {**_RETURNED, "tool_call_id": _LONG_ID["id"]}


class ToolCallFormat(enum.Enum):
    """A way to spell tool calls; the contract describes each."""

    HERMES = "hermes"
    LLAMA = "llama"
    MISTRAL = "mistral"
    MISTRAL_ARGS = "mistral_args"
    HARMONY = "harmony"
    SPELLED = "spelled"


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
_REASONING = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Pairs of marks around reasoning that templates know."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How an assistant's answer spells tool calls and reasoning, and what of them the template renders."""

    tools: bool = False
    """Whether the template renders tools."""
    tool_calls: ToolCallFormat | None = None
    """How calls are spelled; None if the template renders no conversation."""
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
    spelling: CallSpelling | None = None
    """The pieces of calls, if no other format implies them, or if the template leaves calls out."""
    lacks_calls: bool = False
    """Whether the template leaves out calls of the assistant."""
    lacks_results: bool = False
    """Whether it leaves out the results of calls."""
    lacks_system: bool = False
    """Whether it leaves out or refuses a system message."""
    lacks_later_system: bool = False
    """Whether it leaves out or refuses a system message that is not the first message, as Qwen 3.5's does."""
    alternates: bool = False
    """Whether it refuses two messages of the user in a row."""
    needs_answer: bool = False
    """Whether it refuses a message of the user behind the result of a call without an answer between, as Mistral's."""
    needs_user: bool = False
    """Whether it refuses a system message without one of the user, as Qwen 3.5's does, or leaves it out then."""
    lacks_empty: bool = False
    """Whether it refuses a message of the assistant without a text and calls, as Ministral 3's does."""
    lacks_text: bool = False
    """Whether it refuses a message that has reasoning, a text and calls, as gpt-oss's does."""
    short_ids: bool = False
    """Whether it refuses ids of calls that are not nine letters or digits, as Mistral's does."""
    one_call: bool = False
    """Whether it refuses or leaves out all but the first call of a message, as Llama's and gpt-oss's do."""
    content: tuple[str, str] | None = None
    """The marks around an answer's text."""


Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], str]
"""Renders messages and tools up to the start of the assistant's answer; may raise anything."""


def find_chat_format(template: str, render: Render, added: Mapping[str, tuple[int, bool]]) -> ChatFormat:
    """Returns the format of a chat template. added: tokens of their own, by name, with their ids and whether they are
    special."""
    prompt = _tried(render, [_USER], [])
    if not prompt:
        return ChatFormat()
    # Templates that only begin the reasoning, such as Olmo 3's, do not have its end.
    begun = prompt.rstrip()
    reasoning = next((each for each in _REASONING if each[1] in template or begun.endswith(each[0])), None)
    trial = _Trial(render, reasoning)
    calls = trial.calls()
    if calls is None:
        calls = trial.calls_left_out(template, added)
    spelled = calls.spelling.texts if calls.format is ToolCallFormat.SPELLED and calls.spelling is not None else ()
    if calls.format is ToolCallFormat.HARMONY:
        reasoning = None  # its channels separate reasoning
    content = None
    if calls.format is not ToolCallFormat.HARMONY:
        content = find_content(prompt, _tried(render, [_USER, _PLAIN], []), _TEXT, reasoning)
    texts = (*_MARKERS.get(calls.format, ()), *(reasoning or ()), *(content or ()), *spelled)
    found = {
        name: place
        for name, place in added.items()
        if name in texts or (MARKER.fullmatch(name) and any(name in text for text in texts))
    }
    one, two, returned = (_tried(render, [_USER, *each], _TOOLS) for each in ([_ONE], [_TWO], [_ONE, _RETURNED]))
    lacks_system = _RULE not in _tried(render, [_SYSTEM, _USER], [])
    return ChatFormat(
        tools=calls.tools,
        tool_calls=calls.format,
        reasoning=reasoning,
        reasoning_open=reasoning is not None and begun.endswith(reasoning[0]),
        marker_ids={marker: token for marker, (token, _) in found.items()},
        special_markers=any(special for _, special in found.values()),
        spelling=calls.spelling,
        lacks_calls=not calls.rendered,
        lacks_results=not calls.tools or _RESULT not in returned,
        lacks_system=lacks_system,
        lacks_later_system=_RULE not in _tried(render, [_USER, _PLAIN, _SYSTEM, _USER], []),
        alternates=not _tried(render, [_USER, _USER], []),
        needs_answer=bool(returned) and not _tried(render, [_USER, _ONE, _RETURNED, _USER], _TOOLS),
        needs_user=not lacks_system and _RULE not in _tried(render, [_SYSTEM], []),
        lacks_empty=bool(_tried(render, [_USER, _PLAIN, _USER], []))
        and not _tried(render, [_USER, {**_PLAIN, "content": ""}, _USER], []),
        lacks_text=not _tried(render, [_USER, {**_REASONED, "content": _TEXT}], _TOOLS)
        and bool(_tried(render, [_USER, _REASONED], _TOOLS)),
        one_call=calls.rendered and bool(one) and two in ("", one),
        short_ids=bool(returned) and not _tried(render, [_USER, *_LONG], _TOOLS),
        content=content,
    )


@dataclass(frozen=True, slots=True)
class _Calls:
    """The behaviour of a template with tools and calls."""

    format: ToolCallFormat
    spelling: CallSpelling | None = None
    tools: bool = True
    """Whether it renders tools."""
    rendered: bool = True
    """Whether it renders calls."""


class _Trial:
    """Renders trial conversations with one template."""

    def __init__(self, render: Render, reasoning: tuple[str, str] | None) -> None:
        self._render = render
        self._reasoning = reasoning
        self._offered = _tried(render, [_USER], _TOOLS)
        self._plain = _tried(render, [_USER, _PLAIN], _TOOLS)

    def calls(self) -> _Calls | None:
        """Returns how calls are spelled, if the template renders tools, and calls in a way that is known."""
        if _DESCRIPTION not in self._offered:
            return None
        one, two = (_tried(self._render, [_USER, each], _TOOLS) for each in (_ONE, _TWO))
        spelled = _tried(self._render, [_USER, _ONE, _RETURNED], _TOOLS) or one
        known = next((each for each, spelling in _SPELLINGS if re.search(spelling, spelled)), None)
        if known is not None:
            return _Calls(known)
        spelling = find_spelling(self._plain, _TEXT, one, two, self._reasoning)
        return None if spelling is None else _Calls(ToolCallFormat.SPELLED, spelling)

    def calls_left_out(self, template: str, added: Iterable[str]) -> _Calls:
        """Returns how calls are spelled if the template leaves them out, or spells them in an unknown way.

        Instructions that it renders with the tools say to the model how to call them. If there are none, the model gets
        other instructions.
        """
        one = _tried(self._render, [_USER, _ONE], _TOOLS)
        if _DESCRIPTION in self._offered and str(ARGUMENTS[_KEY]) not in one:
            if not {"<|tool_call_start|>", "<|tool_list_start|>"}.isdisjoint([*added, *MARKER.findall(template)]):
                return _Calls(ToolCallFormat.SPELLED, LFM, rendered=False)
            if HERMES.call_begin.rstrip() in self._offered:
                return _Calls(ToolCallFormat.HERMES, HERMES, rendered=False)
        return _Calls(ToolCallFormat.HERMES, HERMES, tools=False, rendered=False)


def _tried(render: Render, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> str:
    """Returns the rendered text; an empty one if the template rejects the trial, as templates without tools may."""
    try:
        return render(messages, tools)
    except Exception:  # noqa: BLE001 - templates are programs of the checkpoint and may raise anything
        return ""
