"""Requests for responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from draftwire import ChatFormat, GenerateOptions
from gateway_service.answers.answer_form import AnswerForm
from gateway_service.answers.answer_plan import AnswerPlan
from gateway_service.answers.tool import Tool, ToolUse
from gateway_service.http.errors import UNSUPPORTED_PART, GatewayError
from gateway_service.openai.chat_message import merged
from gateway_service.openai.fields.checks import (
    IS_LIST,
    IS_TEXT,
    MOST_MESSAGES,
    MOST_PARTS,
    MOST_TOOLS,
    JsonObject,
    Strings,
    at_most,
    one_of,
    text_or_list,
)
from gateway_service.openai.fields.content import read_behind_results, readable, refusal_as_text, text_alone
from gateway_service.openai.fields.whole_numbers import TokenLimit
from gateway_service.openai.generation_request import GenerationRequest
from gateway_service.openai.other_fields import left_out
from gateway_service.openai.output_form import json_form
from gateway_service.openai.template_options import Effort, TemplateFields, TemplateUse, template_use
from gateway_service.openai.tools import AS_REQUIRED, AllowedTools, OtherTool, ToolName, or_other, others_of, tool_use

_STRICT = ConfigDict(strict=True, extra="ignore", populate_by_name=True)
_WHOLE = "is not supported, since no response is kept: input takes the whole conversation"
_REFUSED = {
    "previous_response_id": _WHOLE,
    "conversation": _WHOLE,
    "background": "is not supported",
    "prompt": "is not supported; instructions and input are",
    "n": "is not supported",
    "max_tokens": "is max_output_tokens here",
    "response_format": "is text.format here",
}
"""Fields that would change the output and are not supported here, and what there is in their place."""
_LOG_PROBS = "message.output_text.logprobs"
_ROLES = {"developer": "system"}
_MOST_FUNCTIONS = 1024
"""Most functions of a request, those in namespaces included: several MCP servers may have hundreds."""


class ContentPart(BaseModel):
    """A part of a message."""

    model_config = _STRICT

    type: Annotated[
        Literal["input_text", "output_text", "text"],
        BeforeValidator(text_alone("input_text", "output_text", "text")),
    ]
    text: str
    left_out: str | None = None
    """Type of what the text stands for; see `readable`."""


Parts = Annotated[
    Annotated[str, IS_TEXT]
    | Annotated[list[Annotated[ContentPart, BeforeValidator(refusal_as_text)]], at_most(MOST_PARTS), IS_LIST],
    text_or_list(f"a string or a list of at most {MOST_PARTS} parts of type input_text"),
]
"""A content: one text, or several parts."""
ResultParts = Annotated[
    Annotated[str, IS_TEXT]
    | Annotated[list[Annotated[ContentPart, BeforeValidator(readable)]], at_most(MOST_PARTS), IS_LIST],
    text_or_list(f"a string or a list of at most {MOST_PARTS} parts of type input_text"),
]
"""The content of a result."""


class Message(BaseModel):
    """A message of the conversation."""

    model_config = _STRICT

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Parts


class FunctionCall(BaseModel):
    """A call that the model made."""

    model_config = _STRICT

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class CustomCall(BaseModel):
    """A call whose argument is a text, as models of OpenAI make it; here it is the argument `input` of a function."""

    model_config = _STRICT

    type: Literal["custom_tool_call"]
    call_id: str
    name: str
    input: str

    @property
    def arguments(self) -> str:
        """The call's arguments."""
        return json.dumps({"input": self.input})


class ShellCall(BaseModel):
    """A call of the tool `local_shell`, as models of OpenAI make it."""

    model_config = _STRICT

    type: Literal["local_shell_call"]
    call_id: str
    action: JsonObject
    name: ClassVar[str] = "local_shell"

    @property
    def arguments(self) -> str:
        """The call's arguments."""
        return json.dumps(self.action)


class McpCall(BaseModel):
    """A call of an MCP server's tool that OpenAI's servers made, and its result."""

    model_config = _STRICT

    type: Literal["mcp_call"]
    id: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None

    @property
    def result(self) -> str:
        """The result, or what went wrong."""
        if self.output is not None or self.error is None:
            return self.output or ""
        return self.error if isinstance(self.error, str) else json.dumps(self.error)


class FunctionOutput(BaseModel):
    """The result of a call."""

    model_config = _STRICT

    type: Literal["function_call_output", "custom_tool_call_output", "local_shell_call_output"]
    call_id: Annotated[str, Field(validation_alias=AliasChoices("call_id", "id"))]
    output: ResultParts


class ReasoningText(BaseModel):
    """A part of the model's reasoning."""

    model_config = _STRICT

    text: str


class ReasoningItem(BaseModel):
    """The model's reasoning before an answer."""

    model_config = _STRICT

    type: Literal["reasoning"]
    content: Annotated[list[ReasoningText], at_most(MOST_PARTS)] | None = None


def _no_reference(kind: Any) -> Any:
    """Says what to send instead of a reference, as the AI SDK writes for whatever a response had."""
    if kind == "item_reference":
        raise PydanticCustomError(
            UNSUPPORTED_PART,
            "item_reference is not supported, since no response is kept: send the item itself, as clients such as the "
            "AI SDK do with store: false",
        )
    return kind


class OtherItem(BaseModel):
    """An item of another type, such as a search on OpenAI's servers, which is left out."""

    model_config = _STRICT

    type: Annotated[str, BeforeValidator(_no_reference)]


def _kind_of(item: Any) -> str:
    kind = item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)
    kind = _OUTPUTS[0] if kind in _OUTPUTS else kind
    return f"<{kind}>" if kind in _KINDS else "<other>"


_OUTPUTS = ("function_call_output", "custom_tool_call_output", "local_shell_call_output")
_KINDS = ("message", "function_call", "custom_tool_call", "local_shell_call", "mcp_call", _OUTPUTS[0], "reasoning")
Item = Annotated[
    Annotated[Message, Tag("<message>")]
    | Annotated[FunctionCall, Tag("<function_call>")]
    | Annotated[CustomCall, Tag("<custom_tool_call>")]
    | Annotated[ShellCall, Tag("<local_shell_call>")]
    | Annotated[McpCall, Tag("<mcp_call>")]
    | Annotated[FunctionOutput, Tag("<function_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[OtherItem, Tag("<other>")],
    Discriminator(_kind_of),
]


class Function(BaseModel):
    """A function that the model may call."""

    model_config = _STRICT

    type: Literal["function"]
    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class Namespace(BaseModel):
    """Functions under a common name, as Codex has those of an MCP server."""

    model_config = _STRICT

    type: Literal["namespace"]
    name: ToolName
    description: str | None = None
    """Left out, which a header of the response says: models know functions alone."""
    tools: Annotated[list[Annotated[Function | OtherTool, or_other(Function)]], at_most(_MOST_FUNCTIONS)]


class FunctionChoice(BaseModel):
    """The choice of one function."""

    model_config = _STRICT

    type: Literal["function"]
    name: str


class AllowedFunctions(AllowedTools):
    """The choice of some functions."""

    type: Literal["allowed_tools"]


class TextFormat(BaseModel):
    """The form of the text."""

    model_config = _STRICT

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ReasoningOptions(BaseModel):
    """Options of reasoning; a header of the response names those that are not here."""

    model_config = ConfigDict(strict=True, extra="allow")

    effort: Effort | None = None
    summary: str | None = None
    generate_summary: str | None = None


class TextOptions(BaseModel):
    """Options of the text."""

    model_config = _STRICT

    verbosity: Literal["low", "medium", "high"] | None = None
    format: TextFormat | None = None


class ResponsesRequest(TemplateFields, GenerationRequest):
    """A request for a response. It is not kept: each one has the whole conversation."""

    elsewhere: ClassVar[Mapping[str, str]] = {
        "messages": "is input here",
        "max_completion_tokens": "is max_output_tokens here",
        "reasoning_effort": "is reasoning.effort here",
        "verbosity": "is text.verbosity here",
        "logprobs": "log-probabilities are not supported here",
        "top_logprobs": "log-probabilities are not supported here",
        "context_management": "is not supported",
        "echo": "is not supported",
        "suffix": "is not supported",
        "best_of": "is not supported",
        "add_special_tokens": "the chat template writes the special tokens itself",
    }

    input: Annotated[
        Annotated[str, IS_TEXT] | Annotated[list[Item], at_most(MOST_MESSAGES), IS_LIST],
        text_or_list(f"a string or a list of at most {MOST_MESSAGES} items"),
        BeforeValidator(read_behind_results("type", *_OUTPUTS)),
    ]
    """The conversation: a user's text, or items."""
    instructions: str | None = None
    """A system message before it."""
    max_output_tokens: TokenLimit | None = None
    """Most tokens to generate, -1 for the end of the context."""
    tools: (
        Annotated[
            list[Annotated[Function | Namespace | OtherTool, or_other(Function, namespace=Namespace)]],
            at_most(MOST_TOOLS),
        ]
        | None
    ) = None
    """Functions that the model may call, also in namespaces. Tools of other types are left out, which a header of the
    response names."""
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | FunctionChoice | AllowedFunctions | None,
        AS_REQUIRED,
        one_of('"none", "auto", "required" or {"type": "function", "name": ...}'),
    ] = None
    """The functions that the model may or must call."""
    parallel_tool_calls: bool | None = None
    """Whether there may be several calls; default true."""
    text: TextOptions | None = None
    """Form of the text."""
    reasoning: ReasoningOptions | None = None
    """How much the model reasons; see `reasoning_effort` of chat completions. There are no summaries."""
    include: Strings | None = None
    """Further parts of the response; log-probabilities are rejected."""

    @property
    def left_out(self) -> list[str]:
        """Names of the parts of the request that are left out."""
        items = [] if isinstance(self.input, str) else self.input
        others = [f"input[{index}]({item.type})" for index, item in enumerate(items) if isinstance(item, OtherItem)]
        lists = [
            (f"input[{at}].output", item.output) for at, item in enumerate(items) if isinstance(item, FunctionOutput)
        ]
        lists += [(f"input[{at}].content", item.content) for at, item in enumerate(items) if isinstance(item, Message)]
        parts = [(place, *each) for place, content in lists if isinstance(content, list) for each in enumerate(content)]
        others += [f"{place}[{number}]({part.left_out})" for place, number, part in parts if part.left_out]
        fields = [name for name in super().left_out if name not in _REFUSED]  # these ask for nothing, as false
        spaces = [(at, tool) for at, tool in enumerate(self.tools or ()) if isinstance(tool, Namespace)]
        inner = [name for at, tool in spaces for name in others_of(tool.tools, f"tools[{at}].tools")]
        told = [f"tools[{at}].description" for at, tool in spaces if tool.description]
        return [*fields, *others_of(self.tools), *inner, *told, *others]

    def check(self) -> None:
        """Checks fields whose validity depends on other fields."""
        super().check()
        for name, reason in _REFUSED.items():
            if (self.model_extra or {}).get(name) or (name in type(self).model_fields and getattr(self, name)):
                raise GatewayError(f"{name}: {reason}", param=name, code="unsupported_parameter")
        if len(self.functions) > _MOST_FUNCTIONS:
            raise GatewayError(f"tools: has more than {_MOST_FUNCTIONS} functions", param="tools", code="invalid_value")
        if _LOG_PROBS in (self.include or ()):
            raise GatewayError(
                f"include: {_LOG_PROBS} is not supported here", param="include", code="unsupported_parameter"
            )

    def template(self, chat_format: ChatFormat | None) -> TemplateUse:
        """Returns how the conversation is rendered. Raises GatewayError."""
        reasoning, text = self.reasoning or ReasoningOptions(), self.text or TextOptions()
        use = template_use(
            self,
            chat_format,
            effort=("reasoning.effort", reasoning.effort),
            verbosity=("text.verbosity", text.verbosity),
        )
        summary = next((name for name in ("summary", "generate_summary") if getattr(reasoning, name)), None)
        others = [*([] if summary is None else [summary]), *left_out(reasoning.model_extra or {})]
        return replace(use, left_out=(*use.left_out, *(f"reasoning.{name}" for name in others)))

    def plan(self, chat_format: ChatFormat | None) -> AnswerPlan:
        """Returns how the answer is made and read. chat_format: that of the served model."""
        return AnswerPlan(chat_format, self._use(), True, AnswerForm(self.form_name(), self.form()))

    def field_names(self) -> dict[str, str]:
        """Returns this request's names for the contract's fields."""
        tools = {"structured_output": "tools"} if self.functions else {}
        return super().field_names() | tools | {"max_tokens": "max_output_tokens", "messages": "input"}

    @property
    def functions(self) -> dict[str, tuple[str | None, Function]]:
        """The functions that the model may call, behind their namespaces, by their places among the tools."""
        found: dict[str, tuple[str | None, Function]] = {}
        for index, tool in enumerate(self.tools or ()):
            if isinstance(tool, Function):
                found[str(index)] = (None, tool)
            elif isinstance(tool, Namespace):
                inner = ((number, each) for number, each in enumerate(tool.tools) if isinstance(each, Function))
                found |= {f"{index}].tools[{number}": (tool.name, each) for number, each in inner}
        return found

    @property
    def namespaced(self) -> dict[str, tuple[str, str]]:
        """Namespaces and names of functions in namespaces, by the names that the model knows."""
        functions = self.functions.values()
        return {known_name(space, each.name): (space, each.name) for space, each in functions if space is not None}

    def conversation(self) -> list[dict[str, Any]]:
        """Returns the messages in the SDK's form.

        Raises:
            GatewayError: an item is the result of no call.
        """
        turns: list[dict[str, Any]] = []
        if self.instructions:  # templates write an empty system message, and leave out their own for it
            turns.append({"role": "system", "content": self.instructions})
        if isinstance(self.input, str):
            return [*turns, {"role": "user", "content": self.input}]
        names: dict[str, str] = {}
        for index, item in enumerate(self.input):
            match item:
                case Message():
                    last = turns[-1] if turns else {}
                    if item.role == "assistant" and last.get("role") == "assistant" and not last["content"]:
                        last["content"] = _text(item.content)
                    else:
                        turns.append({"role": _ROLES.get(item.role, item.role), "content": _text(item.content)})
                case ReasoningItem():
                    text = "".join(part.text for part in item.content or ())
                    turn = _assistant(turns)
                    turn["reasoning_content"] = turn.get("reasoning_content", "") + text
                case FunctionCall() | CustomCall() | ShellCall():
                    space = item.namespace if isinstance(item, FunctionCall) else None
                    name = names[item.call_id] = known_name(space, item.name)
                    call = {"id": item.call_id, "function": {"name": name, "arguments": item.arguments}}
                    _assistant(turns).setdefault("tool_calls", []).append(call)
                case McpCall():
                    call = {"id": item.id, "function": {"name": item.name, "arguments": item.arguments}}
                    _assistant(turns).setdefault("tool_calls", []).append(call)
                    turns.append({"role": "tool", "content": item.result, "tool_call_id": item.id, "name": item.name})
                case FunctionOutput():
                    if item.call_id not in names:
                        param = f"input[{index}].call_id"
                        raise GatewayError(f"{param}: is of no call before", param=param, code="invalid_value")
                    turn = {"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id}
                    turns.append(turn | {"name": names[item.call_id]})
        if not turns:
            raise GatewayError("input: is empty", param="input", code="invalid_value")
        return merged(turns)

    def _forms(self) -> list[tuple[str, GenerateOptions]]:
        chosen, name = None if self.text is None else self.text.format, "text.format.schema"
        if chosen is None:
            return super()._forms()
        form: GenerateOptions = {}
        if chosen.schema_ is not None:
            if chosen.type == "text":
                raise GatewayError(
                    f"{name}: requires the type json_schema or json_object", param=name, code="invalid_value"
                )
            form = json_form(name, chosen.schema_, strict=bool(chosen.strict))
        elif chosen.type == "json_schema":
            raise GatewayError(f"{name}: is required", param=name, code="missing_required_parameter")
        elif chosen.type == "json_object":
            form = {"json_object": True}
        return [*([("text.format", form)] if form else []), *super()._forms()]

    def _use(self) -> ToolUse:
        tools = {
            place: Tool(known_name(space, each.name), each.description, each.parameters, bool(each.strict))
            for place, (space, each) in self.functions.items()
        }
        only = self.tool_choice.name if isinstance(self.tool_choice, FunctionChoice) else None
        choice = self.tool_choice if isinstance(self.tool_choice, str) else None
        if isinstance(self.tool_choice, AllowedFunctions):
            tools, choice = self.tool_choice.of(tools), self.tool_choice.mode
        return tool_use(tools, choice, only, self.parallel_tool_calls, names="tools[{}].name")


def known_name(namespace: str | None, name: str) -> str:
    """Returns the name by which the model knows a function."""
    return f"{namespace}__{name}" if namespace else name


def _text(content: str | list[ContentPart]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _assistant(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the assistant's last message; a new one if somebody else spoke last."""
    if not turns or turns[-1]["role"] != "assistant":
        turns.append({"role": "assistant", "content": ""})
    return turns[-1]
