"""The texts around the messages of a conversation, found by rendering trial conversations with a chat template."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

Message = Mapping[str, str]
Render = Callable[[Sequence[Message], bool], str]
"""Renders messages, and with True what begins the assistant's answer, as symbols (`Vocabulary.symbols`); may raise
anything."""

START = "\U0010ffff"
"""The symbol of the start of a text. No token has it."""

_RULE = {"role": "system", "content": "Rule 1"}
_QUESTION = {"role": "user", "content": "Question 2"}
_ANSWER = {"role": "assistant", "content": "Answer 3"}
_FURTHER = {"role": "user", "content": "Question 4"}


class Turn(enum.Enum):
    """A place of a conversation: what stands there are the symbols between two messages, or before one."""

    START_SYSTEM = enum.auto()
    """From the start of the text to the system message."""
    START_USER = enum.auto()
    """From the start of the text to the user's message; it may have a system message that the template adds."""
    SYSTEM_USER = enum.auto()
    USER_PROMPT = enum.auto()
    """From the user's message to the end of the prompt, where the assistant's answer begins."""
    USER_ASSISTANT = enum.auto()
    """From the user's message to an answer that has been given."""
    ASSISTANT_USER = enum.auto()
    USER = enum.auto()
    """The text that begins a user's message, whatever is before it."""
    PROMPT = enum.auto()
    """The text that begins the assistant's answer at the end of the prompt, whatever is before it."""
    ASSISTANT = enum.auto()
    """The text that begins an answer that has been given, whatever is before it."""


def find_turn_markers(render: Render) -> dict[Turn, str]:
    """Returns the symbols at each place of a conversation, as far as the template has any there.

    Empty if the template does not render a message of the user, or changes its text.
    """
    asked = _tried(render, [_QUESTION], False)
    prompt = _after(_tried(render, [_QUESTION], True), _QUESTION)
    talk = _tried(render, [_QUESTION, _ANSWER, _FURTHER], False)
    if prompt is None:
        return {}
    markers: dict[Turn, str | None] = {
        Turn.START_USER: _before(_tried(render, [_QUESTION], True), _QUESTION),
        Turn.USER_PROMPT: prompt,
        Turn.USER_ASSISTANT: _between(talk, _QUESTION, _ANSWER),
        Turn.ASSISTANT_USER: _between(talk, _ANSWER, _FURTHER),
    }
    ruled = _tried(render, [_RULE, _QUESTION], True)
    if (rule := _before(ruled, _RULE)) is not None:
        markers |= {Turn.START_SYSTEM: rule, Turn.SYSTEM_USER: _between(ruled, _RULE, _QUESTION)}
    ends_question = _after(asked, _QUESTION)
    ends_answer = _after(_tried(render, [_QUESTION, _ANSWER], False), _ANSWER)
    markers |= {
        Turn.PROMPT: _without(prompt, ends_question),
        Turn.ASSISTANT: _without(markers[Turn.USER_ASSISTANT], ends_question),
        Turn.USER: _without(markers[Turn.ASSISTANT_USER], ends_answer),
    }
    return {turn: text for turn, text in markers.items() if text}


def _tried(render: Render, messages: Sequence[Message], prompt: bool) -> str:
    """Returns the symbols of a conversation; an empty text if the template rejects it."""
    try:
        return render(messages, prompt)
    except Exception:  # noqa: BLE001 - templates are programs of the checkpoint and may raise anything
        return ""


def _before(text: str, message: Message) -> str | None:
    found, content, _ = text.partition(message["content"])
    return START + found if content else None


def _after(text: str, message: Message) -> str | None:
    _, content, found = text.partition(message["content"])
    return found if content else None


def _between(text: str, first: Message, second: Message) -> str | None:
    rest = _after(text, first)
    found, content, _ = (rest or "").partition(second["content"])
    return found if content else None


def _without(text: str | None, end: str | None) -> str | None:
    """Returns the rest of a text that begins with the end of a message; None if it does not, or either is missing."""
    return text.removeprefix(end) if text and end and text.startswith(end) else None
