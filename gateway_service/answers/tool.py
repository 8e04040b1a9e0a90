"""A tool that an answer may call, and the choice among tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

ChoiceMode = Literal["none", "auto", "required"]
_STATE_TYPES = {"type", "$ref", "allOf", "anyOf", "oneOf", "const", "enum"}
"""Keywords by which a schema states its type; one without them is an object's, since arguments are one."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that an answer may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments; None if it has none."""
    strict: bool = False
    """Whether its arguments must be valid under the schema."""

    @property
    def schema(self) -> dict[str, Any]:
        """JSON schema of its arguments."""
        if self.parameters is None:
            return {"type": "object", "properties": {}, "additionalProperties": False}
        return self.parameters if _STATE_TYPES & self.parameters.keys() else {"type": "object"} | self.parameters

    def to_sdk(self) -> dict[str, Any]:
        """Returns the tool in the SDK's form, which is that of chat completions."""
        function: dict[str, Any] = {"name": self.name}
        if self.description is not None:
            function["description"] = self.description
        if self.parameters is not None:
            function["parameters"] = self.parameters
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of a request, and how its answer has to use them."""

    tools: Sequence[Tool] = ()
    mode: ChoiceMode = "none"
    """none: no call. auto: as the model decides. required: at least one call."""
    only: str | None = None
    """Name of the one tool that has to be called."""
    parallel: bool = True
    """Whether there may be several calls."""

    @property
    def offered(self) -> Sequence[Tool]:
        """The tools that the model is told about."""
        return () if self.mode == "none" else self.tools

    @property
    def callable(self) -> Sequence[Tool]:
        """The tools that may be called."""
        return [tool for tool in self.offered if self.only in (None, tool.name)]

    @property
    def enforced(self) -> bool:
        """Whether a grammar has to enforce the use."""
        strict = any(tool.strict for tool in self.offered)
        return bool(self.offered) and (self.mode == "required" or strict or not self.parallel)
