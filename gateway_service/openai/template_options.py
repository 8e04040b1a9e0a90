"""Options of a conversation that reach the chat template: its variables, and how much the model reasons."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticCustomError

from draftwire import ChatFormat
from draftwire._types.quoting import shortened
from gateway_service.http.errors import UNSUPPORTED_PART, GatewayError
from gateway_service.openai.fields.checks import MOST_PARTS, JsonObject, at_most

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
_NONE = "none"
_SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates turn reasoning on and off: Qwen's and GLM's, DeepSeek's and Granite's."""
_HARMONY_EFFORTS = ("low", "medium", "high")
_DOCUMENTS = "documents"


def _no_budget(budget: Any) -> None:
    """Refuses a budget, as clients of Anthropic's API write it."""
    if budget is not None:
        message = "the length of reasoning cannot be limited; reasoning_effort may be"
        raise PydanticCustomError(UNSUPPORTED_PART, message)


class Thinking(BaseModel):
    """Whether the model reasons, as DeepSeek's and GLM's APIs say it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    type: Literal["enabled", "disabled"]
    budget_tokens: Annotated[Any, BeforeValidator(_no_budget)] = None


class TemplateFields(BaseModel):
    """The fields of a request that reach the chat template."""

    chat_template_kwargs: JsonObject | None = None
    """Variables of the chat template, such as `enable_thinking`. The response's header `x-draftwire-left-out` names
    those that the template does not read."""
    add_generation_prompt: bool | None = None
    """false ends the prompt with the last message, without what begins the assistant's answer; default true."""
    continue_final_message: bool | None = None
    """Continue the last message, which is the assistant's, instead of answering it."""
    documents: Annotated[list[JsonObject], at_most(MOST_PARTS)] | None = None
    """Documents for templates that render some."""
    enable_thinking: bool | None = None
    """The variable of that name."""
    thinking: Thinking | None = None
    """`{"type": "disabled"}` turns reasoning off, as `reasoning_effort: "none"` does."""


@dataclass(frozen=True, slots=True)
class TemplateUse:
    """How the conversation of one request is rendered."""

    variables: Mapping[str, Any] = field(default_factory=dict)
    generation_prompt: bool = True
    continues: bool = False
    left_out: tuple[str, ...] = ()
    """Names of fields that the template has no use for."""

    def to_sdk(self) -> dict[str, Any]:
        """Returns the SDK's parameters."""
        return {
            "chat_template_kwargs": self.variables,
            "add_generation_prompt": self.generation_prompt,
            "continue_final_message": self.continues,
        }

    def deciding(self, chat_format: ChatFormat | None) -> dict[str, Any]:
        """Returns those variables on which the format of answers may depend."""
        read = frozenset() if chat_format is None else chat_format.template_variables
        return {name: value for name, value in self.variables.items() if name in read and name != _DOCUMENTS}

    def format_of(self, chat_format: ChatFormat | None) -> ChatFormat | None:
        """Returns how the answer begins, given the format of answers to conversations with these variables."""
        if chat_format is None or (self.generation_prompt and not self.continues):
            return chat_format
        if self.continues:  # it begins within the message, in harmony's terms within its last channel
            harmony = chat_format.tool_calls == "harmony"
            calls = None if harmony else chat_format.tool_calls
            return replace(chat_format, tool_calls=calls, reasoning_begin="", reasoning_end="", reasoning_open=False)
        return replace(chat_format, reasoning_open=False)


def template_use(
    fields: TemplateFields,
    chat_format: ChatFormat | None,
    *,
    effort: tuple[str, str | None],
    verbosity: tuple[str, str | None] = ("verbosity", None),
    continues: bool = False,
) -> TemplateUse:
    """Returns how a request's conversation is rendered. effort, verbosity: names of these fields, and their values.
    continues: whether the last message asks to be continued.

    Raises:
        GatewayError: fields contradict each other, or ask for what the template cannot do.
    """
    read = frozenset() if chat_format is None else chat_format.template_variables
    variables = dict(fields.chat_template_kwargs or {})
    left_out = [f"chat_template_kwargs.{name}" for name in variables if name not in read]

    def put(name: str, value: Any, source: str) -> None:
        if variables.setdefault(name, value) != value:
            _refuse(source, f"contradicts {name} of chat_template_kwargs, or another field", code="invalid_value")

    if fields.documents:
        if _DOCUMENTS not in read:
            _refuse(_DOCUMENTS, "the served model's chat template renders no documents")
        put(_DOCUMENTS, fields.documents, _DOCUMENTS)
    name, wanted = effort
    if fields.enable_thinking is not None:
        left_out += _reason(put, read, chat_format, "enable_thinking", on=fields.enable_thinking)
    if fields.thinking is not None:
        left_out += _reason(put, read, chat_format, "thinking", on=fields.thinking.type == "enabled")
    if wanted is not None:
        graded = "reasoning_effort" in read
        switch = next((each for each in _SWITCHES if each in read), None)
        if graded and not (wanted == _NONE and switch):
            if chat_format is not None and chat_format.tool_calls == "harmony" and wanted not in _HARMONY_EFFORTS:
                _refuse(name, f"the served model knows {', '.join(_HARMONY_EFFORTS)}, not {wanted}")
            put("reasoning_effort", wanted, name)
        if switch is not None or (wanted == _NONE and not graded):
            left_out += _reason(put, read, chat_format, name, on=wanted != _NONE)
        if not graded and wanted != _NONE:
            left_out.append(name)
    told, grade = verbosity
    if grade is not None:
        if "verbosity" in read:
            put("verbosity", grade, told)
        else:
            left_out.append(told)
    asked = bool(fields.continue_final_message)
    if (asked or continues) and fields.add_generation_prompt:
        _refuse("continue_final_message" if asked else "prefix", "cannot be combined with add_generation_prompt")
    return TemplateUse(
        variables=variables,
        generation_prompt=fields.add_generation_prompt is not False,
        continues=asked or continues,
        left_out=tuple(dict.fromkeys(left_out)),
    )


def _reason(put: Any, read: frozenset[str], chat_format: ChatFormat | None, name: str, *, on: bool) -> list[str]:
    """Turns reasoning on or off; returns the field's name if the template cannot and that is of no account."""
    switch = next((each for each in _SWITCHES if each in read), None)
    if switch is not None:
        put(switch, on, name)
        return []
    reasons = chat_format is not None and (bool(chat_format.reasoning_end) or chat_format.tool_calls == "harmony")
    if reasons and not on:
        _refuse(name, "the served model's chat template cannot turn reasoning off")
    return [] if on == reasons else [name]


def _refuse(name: str, message: str, *, code: str = "unsupported_parameter") -> None:
    raise GatewayError(f"{name}: {shortened(message, 400)}", param=name, code=code)
