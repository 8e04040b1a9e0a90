"""Requests for chat completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.http.errors import GatewayError
from gateway.openai.generation_request import GenerationRequest, PositiveCount
from gateway.openai.speculation_options import Content, text_of

_SYSTEM = ("system", "developer")


class ChatMessage(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(strict=True, extra="allow", use_attribute_docstrings=True)

    role: Literal["system", "developer", "user", "assistant"]
    """Role of the speaker; `developer` counts as `system`."""
    content: Content
    """Text of the message."""


def conversation_of(messages: Iterable[ChatMessage]) -> list[dict[str, str]]:
    """Returns messages in the SDK's form."""
    return [
        {"role": "system" if message.role in _SYSTEM else message.role, "content": text_of(message.content)}
        for message in messages
    ]


class ChatRequest(GenerationRequest):
    """A request for chat completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    """The conversation, oldest message first."""
    max_completion_tokens: PositiveCount | None = None
    """Most tokens to generate; `max_tokens` is the older name."""
    logprobs: bool | None = None
    """Report the log-probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=64)] | None = None
    """Also report this many of the likeliest tokens; requires `logprobs`."""
    modalities: list[str] | None = None
    """Rejected unless it is `["text"]`."""
    tool_choice: Any = None
    """Rejected unless it is "none" or "auto": tools are not supported."""

    @property
    def conversation(self) -> list[dict[str, str]]:
        """The messages in the SDK's form."""
        return conversation_of(self.messages)

    @property
    def most_tokens(self) -> int | None:
        """Most tokens to generate; None continues to the end of the context."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def field_names(self) -> dict[str, str]:
        """Returns this request's names for those contract fields that have several names."""
        newer = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        return super().field_names() | newer

    @property
    def alternatives(self) -> int | None:
        """Number of likeliest tokens to report at each position; None reports no log-probabilities."""
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        """Checks fields whose validity depends on other fields, including those of all requests."""
        super().check()
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise GatewayError("max_tokens: differs from max_completion_tokens", param="max_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise GatewayError("top_logprobs: requires logprobs", param="top_logprobs")
        if self.modalities is not None and self.modalities != ["text"]:
            raise GatewayError("modalities: only text is supported", param="modalities", code="unsupported_parameter")
        if self.tool_choice not in (None, "none", "auto"):
            raise GatewayError(
                "tool_choice: tools are not supported", param="tool_choice", code="unsupported_parameter"
            )
        for index, message in enumerate(self.messages):
            for name in ("tool_calls", "function_call", "audio"):
                if (message.model_extra or {}).get(name):
                    param = f"messages[{index}].{name}"
                    raise GatewayError(f"{param}: is not supported", param=param, code="unsupported_parameter")
