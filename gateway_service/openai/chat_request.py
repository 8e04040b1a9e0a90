"""Requests for chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from draftwire import ChatFormat
from gateway_service.answers.answer_form import AnswerForm
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.answers.tool import ToolUse
from gateway_service.http.errors import GatewayError
from gateway_service.openai.chat_message import Messages, check_messages, conversation_of, unread_parts
from gateway_service.openai.fields.checks import Strings
from gateway_service.openai.fields.whole_numbers import TokenLimit, Whole, limit_of
from gateway_service.openai.generation_request import GenerationRequest
from gateway_service.openai.template_options import Effort, TemplateFields, TemplateUse, template_use
from gateway_service.openai.tools import (
    AllowedChoice,
    FunctionTool,
    NamedChoice,
    ToolChoice,
    Tools,
    others_of,
    tool_use,
)


class ChatRequest(TemplateFields, GenerationRequest):
    """A request for chat completions."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "prompt": "is messages here",
        "input": "is messages here",
        "suffix": "insertion before a suffix is not supported",
        "echo": "is not supported; continue_final_message continues a message",
        "best_of": "is not supported; n is",
        "reasoning": "is reasoning_effort here",
        "add_special_tokens": "the chat template writes the special tokens itself",
    }

    messages: Messages
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
    """Functions that the model may call. Tools of other types are left out, which a header of the response names."""
    tool_choice: ToolChoice | None = None
    """none: no call. auto, the default: as the model decides. required: at least one. Or the one function to call, or
    those that may be called."""
    parallel_tool_calls: bool | None = None
    """Whether there may be several calls; default true."""
    separate_reasoning: bool | None = None
    """Whether reasoning is reported as `reasoning_content`, apart from the content; default true."""

    reasoning_effort: Effort | None = None
    """How much the model reasons, as far as its chat template knows: the variable `reasoning_effort`, or
    `enable_thinking`, which `none` turns off."""
    verbosity: Literal["low", "medium", "high"] | None = None
    """The variable `verbosity` of chat templates that read it."""

    @property
    def conversation(self) -> list[dict[str, Any]]:
        """The messages in the SDK's form."""
        return conversation_of(self.messages)

    @property
    def most_tokens(self) -> int | None:
        """Most tokens to generate; None continues to the end of the context."""
        return limit_of(self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens)

    @property
    def left_out(self) -> list[str]:
        """Names of the parts of the request that are left out."""
        return [*super().left_out, *others_of(self.tools), *unread_parts(self.messages)]

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
        if self.top_logprobs and not self.logprobs:
            raise GatewayError("top_logprobs: requires logprobs", param="top_logprobs")
        if self.modalities is not None and self.modalities != ["text"]:
            raise GatewayError("modalities: only text is supported", param="modalities", code="unsupported_parameter")
        check_messages(self.messages)

    def template(self, chat_format: ChatFormat | None) -> TemplateUse:
        """Returns how the messages are rendered. Raises GatewayError."""
        return template_use(
            self,
            chat_format,
            effort=("reasoning_effort", self.reasoning_effort),
            verbosity=("verbosity", self.verbosity),
            continues=bool(self.messages[-1].prefix),
        )

    def plan(self, chat_format: ChatFormat | None) -> AnswerPlan:
        """Returns how the answers are made and read. chat_format: that of the served model."""
        form = AnswerForm(self.form_name(), self.form())
        return AnswerPlan(chat_format, self._tool_use(), self.separate_reasoning is not False, form)

    def _tool_use(self) -> ToolUse:
        given = enumerate(self.tools or ())
        tools = {index: tool.to_tool() for index, tool in given if isinstance(tool, FunctionTool)}
        only = self.tool_choice.function.name if isinstance(self.tool_choice, NamedChoice) else None
        choice = self.tool_choice if isinstance(self.tool_choice, str) else None
        if isinstance(self.tool_choice, AllowedChoice):
            allowed = self.tool_choice.allowed_tools
            tools, choice = allowed.of(tools), allowed.mode
        return tool_use(tools, choice, only, self.parallel_tool_calls, names="tools[{}].function.name")
