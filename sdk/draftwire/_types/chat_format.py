"""How an assistant's answers spell tool calls and reasoning."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from draftwire.v1 import verifier_service_pb2 as pb

ToolCallFormat = Literal["hermes", "llama", "mistral", "mistral_args", "harmony"]
"""A way to spell tool calls; ``ToolCallFormat`` of the contract describes each."""

_FORMATS: dict[int, ToolCallFormat] = {
    pb.TOOL_CALL_FORMAT_HERMES: "hermes",
    pb.TOOL_CALL_FORMAT_LLAMA: "llama",
    pb.TOOL_CALL_FORMAT_MISTRAL: "mistral",
    pb.TOOL_CALL_FORMAT_MISTRAL_ARGS: "mistral_args",
    pb.TOOL_CALL_FORMAT_HARMONY: "harmony",
}


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How an assistant's answers spell tool calls and reasoning, as found in the target's chat template."""

    tool_calls: ToolCallFormat | None = None
    """How calls are spelled; None if the template renders no tools, or spells calls in an unknown way."""
    reasoning_begin: str = ""
    """What begins the reasoning before an answer; empty if answers have none, or if ``tool_calls`` implies it."""
    reasoning_end: str = ""
    """What ends it."""
    reasoning_open: bool = False
    """Whether the prompt ends within the reasoning, so that the output begins with it."""
    marker_ids: Mapping[str, int] = field(default_factory=dict)
    """Markers of the format that are tokens of their own, with their ids."""
    special_markers: bool = False
    """Whether one of them is a special token, which is part of the text only with ``special_tokens``."""
    template_variables: frozenset[str] = frozenset()
    """Names of the variables that the chat template reads, besides messages and tools: ``chat_template_kwargs``."""


def read_chat_format(message: pb.ChatFormat) -> ChatFormat:
    """Returns a ``ChatFormat`` from its message."""
    return ChatFormat(
        tool_calls=_FORMATS.get(message.tool_calls),
        reasoning_begin=message.reasoning_begin,
        reasoning_end=message.reasoning_end,
        reasoning_open=message.reasoning_open,
        marker_ids=dict(message.marker_ids),
        special_markers=message.special_markers,
        template_variables=frozenset(message.template_variables),
    )
