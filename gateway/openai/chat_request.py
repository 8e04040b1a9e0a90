"""Requests for chat completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from draftwire import ChatFormat
from gateway.answers.answer_form import AnswerForm
from gateway.answers.answer_plan import AnswerPlan
from gateway.answers.tool import ToolUse
from gateway.http.errors import GatewayError
from gateway.openai.bounds import MOST_MESSAGES, Strings, at_most
from gateway.openai.chat_message import ChatMessage, check_messages, conversation_of
from gateway.openai.generation_request import GenerationRequest
from gateway.openai.tools import NamedChoice, ToolChoice, Tools, tool_use
from gateway.openai.whole_numbers import TokenLimit, Whole, limit_of


class ChatRequest(GenerationRequest):
    """A request for chat completions."""

    messages: Annotated[list[ChatMessage], at_most(MOST_MESSAGES, least=1)]
    """The conversation, oldest message first."""
    max_completion_tokens: TokenLimit | None = None
    """Most tokens to generate, -1 for the end of the context; `max_tokens` is the older name."""
    logprobs: bool | None = None
    """Report the log-probability of each token."""
    top_logprobs: Annotated[int, Field(ge=0, le=64), Whole] | None = None
    """Also report this many of the likeliest tokens; requires `logprobs`."""
    modalities: Strings | None = None
    """Rejected unless it is `["text"]`."""
    tools: Tools | None = None
    """Functions that the model may call."""
    tool_choice: ToolChoice | None = None
    """none: no call. auto, the default: as the model decides. required: at least one. Or the one function to call."""
    parallel_tool_calls: bool | None = None
    """Whether there may be several calls; default true."""
    separate_reasoning: bool | None = None
    """Whether reasoning is reported as `reasoning_content`, apart from the content; default true."""

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages in the SDK's form."""
        return conversation_of(self.messages)

    @property
    def most_tokens(self) -> int | None:
        """Most tokens to generate; None continues to the end of the context."""
        return limit_of(self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens)

    def field_names(self) -> dict[str, str]:
        """Returns this request's names for those contract fields that have several names."""
        newer = {} if self.max_completion_tokens is None else {"max_tokens": "max_completion_tokens"}
        tools = {"structured_output": "tools", "messages.tools": "tools"} if self.tools else {}
        return super().field_names() | newer | tools

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
        check_messages(self.messages)

    def plan(self, chat_format: ChatFormat | None) -> AnswerPlan:
        """Returns how the answers are made and read. chat_format: that of the served model."""
        form = AnswerForm(self.form_name(), self.form())
        return AnswerPlan(chat_format, self._tool_use(), self.separate_reasoning is not False, form)

    def _tool_use(self) -> ToolUse:
        tools = [tool.to_tool() for tool in self.tools or ()]
        named = isinstance(self.tool_choice, NamedChoice)
        only = self.tool_choice.function.name if isinstance(self.tool_choice, NamedChoice) else None
        choice = None if named else str(self.tool_choice or "auto")
        return tool_use(tools, choice, only, self.parallel_tool_calls, names="tools[{}].function.name")
