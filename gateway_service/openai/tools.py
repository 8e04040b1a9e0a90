"""Tools and the choice among them, as chat completions have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

from gateway_service.answers.tool import ChoiceMode, Tool, ToolUse
from gateway_service.http.errors import GatewayError
from gateway_service.openai.fields.checks import MOST_TOOLS, JsonObject, at_most, one_of

_STRICT = ConfigDict(strict=True, extra="ignore")
ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,128}$")]
"""Name of a tool: letters, digits, underscores and hyphens, at most 128, as of MCP's tools. OpenAI takes 64, but agents
put the server's name before the tool's."""


class FunctionDefinition(BaseModel):
    """A function that the model may call."""

    model_config = _STRICT

    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    """JSON schema of its arguments."""
    strict: bool | None = None
    """Whether its arguments must be valid under the schema."""


class FunctionTool(BaseModel):
    """A tool: a function."""

    model_config = _STRICT

    type: Literal["function"]
    function: FunctionDefinition

    def to_tool(self) -> Tool:
        """Returns the tool."""
        function = self.function
        return Tool(function.name, function.description, function.parameters, bool(function.strict))


class OtherTool(BaseModel):
    """A tool that is no function: one that OpenAI's server runs, as a web search, or one of a client's own kind."""

    model_config = _STRICT

    type: str


def or_other(function: type[BaseModel], **more: type[BaseModel]) -> PlainValidator:
    """Returns a validator that reads tools of other types as `OtherTool`. function: reads those of type function. more:
    what reads further types."""

    def read(value: Any) -> BaseModel:
        kind = value.get("type") if isinstance(value, dict) else None
        known = more.get(kind, OtherTool) if isinstance(kind, str) and kind != "function" else function
        return known.model_validate(value)

    return PlainValidator(read, json_schema_input_type=Union[function, OtherTool, *more.values()])


def others_of(tools: Sequence[object] | None, place: str = "tools") -> list[str]:
    """Returns the names of tools that are left out, as `tools[0](web_search)`."""
    return [f"{place}[{index}]({tool.type})" for index, tool in enumerate(tools or ()) if isinstance(tool, OtherTool)]


class FunctionName(BaseModel):
    """The name of a function."""

    model_config = _STRICT

    name: str


class NamedChoice(BaseModel):
    """The choice of one function, which the model has to call."""

    model_config = _STRICT

    type: Literal["function"]
    function: FunctionName


class AllowedTools(BaseModel):
    """The choice of some functions: those that the model may, or has to, call."""

    model_config = _STRICT

    mode: Literal["auto", "required"]
    tools: Annotated[list[JsonObject], at_most(MOST_TOOLS)]
    """Functions by their names, and tools of other types, which are left out."""

    def of(self, tools: Mapping[Any, Tool]) -> dict[Any, Tool]:
        """Returns those of a request's tools that are allowed. Raises GatewayError for one that is not there."""
        functions = [each for each in self.tools if each.get("type") == "function"]
        chosen = [each["function"] if isinstance(each.get("function"), dict) else each for each in functions]
        wanted = [str(each.get("name")) for each in chosen]
        known = {tool.name for tool in tools.values()}
        for name in wanted:
            if name not in known:
                _refuse_choice(f"there is no tool {name[:64]!r} in tools")
        return {index: tool for index, tool in tools.items() if tool.name in wanted}


class AllowedChoice(BaseModel):
    """The choice of some functions, as chat completions have it."""

    model_config = _STRICT

    type: Literal["allowed_tools"]
    allowed_tools: AllowedTools


AS_REQUIRED = BeforeValidator(lambda choice: "required" if choice == "any" else choice)
"""Reads Mistral's name of required."""
Tools = Annotated[list[Annotated[FunctionTool | OtherTool, or_other(FunctionTool)]], at_most(MOST_TOOLS)]
"""The tools of a request."""
ToolChoice = Annotated[
    Literal["none", "auto", "required"] | NamedChoice | AllowedChoice,
    AS_REQUIRED,
    one_of('"none", "auto", "required" or {"type": "function", "function": {"name": ...}}'),
]
"""The choice among the tools."""


def tool_use(
    tools: Mapping[Any, Tool], choice: str | None, only: str | None, parallel: bool | None, *, names: str
) -> ToolUse:
    """Returns how a request's tools are to be used.

    tools: by their places in the request. choice: none, auto or required. only: name of the one tool to call. names:
    form of a tool's name in the request, with the tool's place.

    Raises:
        GatewayError: two tools have the same name, or the choice is of a tool that is not there.
    """
    known: set[str] = set()
    for index, tool in tools.items():
        if tool.name in known:
            param = names.format(index)
            raise GatewayError(f"{param}: {tool.name!r} is the name of another tool", param=param, code="invalid_value")
        known.add(tool.name)
    if not tools and (only is not None or choice == "required"):
        _refuse_choice("requires tools of type function")
    if only is not None and only not in known:
        _refuse_choice(f"there is no tool {only[:64]!r} in tools")
    mode: ChoiceMode = "none" if not tools or choice == "none" else "auto"
    if only is not None or choice == "required":
        mode = "required"
    return ToolUse(list(tools.values()), mode, only, parallel is not False)


def _refuse_choice(message: str) -> None:
    raise GatewayError(f"tool_choice: {message}", param="tool_choice", code="invalid_value")
