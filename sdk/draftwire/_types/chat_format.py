"""How an assistant's answers spell tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

ToolCallFormat = Literal["hermes", "llama", "mistral", "mistral_args", "harmony", "spelled"]
"""A way to spell tool calls; ``ToolCallFormat`` of the contract describes each."""
CallArgumentStyle = Literal["object", "json", "parameters", "keywords", "bare_keys"]
"""A way to spell a call's name and arguments; ``CallArgumentStyle`` of the contract describes each."""


@dataclass(frozen=True, slots=True)
class CallSpelling:
    """The pieces of calls, as the chat template writes them; ``CallSpelling`` of the contract describes each."""

    style: CallArgumentStyle
    """How a call's name and arguments are spelled."""
    begin: str = ""
    """The beginning of the calls of an answer, before the first one."""
    call_begin: str = ""
    """The beginning of each call."""
    name_end: str = ""
    """Between a call's name and its arguments, unless the style says what is there."""
    call_end: str = ""
    """The end of each call."""
    separator: str = ""
    """Between two calls."""
    end: str = ""
    """The end of the calls of an answer, after the last one."""
    name_key: str = ""
    """Key of the name in the object that a call is."""
    arguments_key: str = ""
    """Key of the arguments in that object."""
    id_key: str = ""
    """Key of the call's number, which comes first in that object; empty if it has none."""
    key_begin: str = ""
    """Before a parameter's key."""
    key_end: str = ""
    """Between a parameter's key and its value."""
    value_end: str = ""
    """After a parameter's value."""
    quote: str = ""
    """Text before and after a string, which then has no escapes; empty stands for quotation marks, with escapes."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How an assistant's answers spell tool calls and reasoning, as found in the target's chat template."""

    tool_calls: ToolCallFormat | None = None
    """How calls are spelled; None if there is no chat template that renders a conversation."""
    reasoning_begin: str = ""
    """The beginning of the reasoning before an answer; empty if answers have none, or if ``tool_calls`` implies it."""
    reasoning_end: str = ""
    """The end of the reasoning."""
    reasoning_open: bool = False
    """Whether the prompt ends within the reasoning, so that the output begins with it."""
    marker_ids: Mapping[str, int] = field(default_factory=dict)
    """Markers of the format that are tokens of their own, with their ids."""
    special_markers: bool = False
    """Whether one of them is a special token, which is part of the text only with ``special_tokens``."""
    template_variables: frozenset[str] = frozenset()
    """Names of the variables that the chat template reads, besides messages and tools: ``chat_template_kwargs``."""
    spelling: CallSpelling | None = None
    """The pieces of calls, if ``tool_calls`` is ``"spelled"``."""
    content_begin: str = ""
    """The beginning of an answer's text, without being part of it."""
    content_end: str = ""
    """The end of an answer's text."""

    def __post_init__(self) -> None:
        """Takes calls for unspelled whose spelling is newer than this SDK."""
        if self.tool_calls == "spelled" and self.spelling is None:
            object.__setattr__(self, "tool_calls", None)
