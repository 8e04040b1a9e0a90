"""How a conversation is rendered by a chat template: what goes into it besides the messages and tools."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, meta
from transformers import PreTrainedTokenizerBase

_GENERATION = re.compile(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}")
"""The tag with which templates mark the assistant's tokens for training; it renders nothing."""
_GIVEN = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
"""Variables that every rendering has."""
RESERVED = frozenset(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {
    "documents",
    "kwargs",
} | {"messages", "conversations"}
"""Names that are no variables of a template but parameters of the library that renders it."""


_TRIED = "Text of the trial."


@dataclass(frozen=True, slots=True)
class ChatRendering:
    """How one conversation is rendered."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    """Further variables for the template, by name; none of `RESERVED`."""
    generation_prompt: bool = True
    """Whether the prompt ends with what begins the assistant's answer."""
    continues: bool = False
    """Whether the prompt ends with the text of the last message, which the answer continues."""


AS_USUAL = ChatRendering()
"""Up to the start of the assistant's answer, without further variables."""


def reads_parts_alone(render: Callable[[Sequence[Mapping[str, Any]]], str]) -> bool:
    """Whether a template renders a text in a list of parts, but leaves out one that is the content itself, as those of
    LLaVA and SmolVLM do. render: renders messages; may raise anything."""

    def has_it(content: object) -> bool:
        try:
            return _TRIED in render([{"role": "user", "content": content}])
        except Exception:  # noqa: BLE001 - templates are programs of the checkpoint and may raise anything
            return False

    return not has_it(_TRIED) and has_it(_part(_TRIED))


def in_parts(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its text in a list of parts."""
    content = message.get("content")
    return {**message, "content": _part(content)} if isinstance(content, str) else dict(message)


def _part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def template_variables(template: str) -> frozenset[str]:
    """Returns the names of the variables that a template reads, besides those that every rendering has.

    Empty for a template that cannot be compiled.
    """
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])
    try:
        found = meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template)))
    except (TemplateSyntaxError, RecursionError):
        return frozenset()
    return frozenset(found) - _GIVEN
