"""How a model spells its calls of tools, piece by piece."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MARKER = re.compile(r"<[^<>]+>|<[^<>]{2,}|\[[A-Z_/]+\]")
"""A marker, or the start of one."""


Call = tuple[str, Mapping[str, Any] | str]
"""A tool's name, and the arguments: an object, or text where the model wrote none."""


class ArgumentStyle(enum.Enum):
    """A way to spell a call's name and arguments; the contract describes each."""

    OBJECT = "object"
    JSON = "json"
    PARAMETERS = "parameters"
    KEYWORDS = "keywords"
    BARE_KEYS = "bare_keys"


@dataclass(frozen=True, slots=True)
class CallSpelling:
    """The pieces of calls, as chat templates write them. White space in them may differ in what a model writes."""

    style: ArgumentStyle
    begin: str = ""
    """Text that begins the calls of an answer, before the first one."""
    call_begin: str = ""
    """Text that begins each call."""
    name_end: str = ""
    """Between a call's name and its arguments (JSON)."""
    call_end: str = ""
    """Text that ends each call."""
    separator: str = ""
    """Between two calls."""
    end: str = ""
    """Text that ends the calls of an answer, after the last one."""
    name_key: str = ""
    """Key of the name in the object that a call is (OBJECT)."""
    arguments_key: str = ""
    """Key of the arguments in it."""
    id_key: str = ""
    """Key of the call's number, which comes first in it; empty if it has none."""
    key_begin: str = ""
    """Before a parameter's key (PARAMETERS)."""
    key_end: str = ""
    """Between its key and its value."""
    value_end: str = ""
    """After its value."""
    quote: str = ""
    """Marks that strings are put between (BARE_KEYS); empty stands for quotation marks with escapes."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The pieces that may have markers in them."""
        return (
            *(self.begin, self.call_begin, self.name_end, self.call_end, self.separator, self.end),
            *(self.key_begin, self.key_end, self.value_end, self.quote),
        )

    def spell(self, calls: Sequence[Call]) -> str:
        """Returns calls as an answer spells them."""
        spelled = self.separator.join(self._call(number, *call) for number, call in enumerate(calls))
        return f"{self.begin}{spelled}{self.end}"

    def _call(self, number: int, name: str, arguments: Mapping[str, Any] | str) -> str:
        match self.style:
            case ArgumentStyle.OBJECT:
                head = f'"{self.id_key}": "{number}", ' if self.id_key else ""
                text = f'{{{head}"{self.name_key}": {_json(name)}, "{self.arguments_key}": {_json_object(arguments)}}}'
            case ArgumentStyle.JSON:
                text = f"{name}{self.name_end}{_json_object(arguments)}"
            case ArgumentStyle.PARAMETERS:
                text = (
                    name
                    + self.name_end
                    + "".join(
                        f"{self.key_begin}{key}{self.key_end}{value if isinstance(value, str) else _json(value)}"
                        f"{self.value_end}"
                        for key, value in _items(arguments)
                    )
                )
            case ArgumentStyle.KEYWORDS:
                text = name + "(" + ", ".join(f"{key}={_keyword(value)}" for key, value in _items(arguments)) + ")"
            case ArgumentStyle.BARE_KEYS:
                text = name + self._bare(dict(_items(arguments)))
        return f"{self.call_begin}{text}{self.call_end}"

    def _bare(self, value: Any) -> str:
        match value:
            case dict():
                return "{" + ",".join(f"{key}:{self._bare(each)}" for key, each in value.items()) + "}"
            case list():
                return "[" + ",".join(map(self._bare, value)) + "]"
            case str() if self.quote:
                return f"{self.quote}{value}{self.quote}"
        return _json(value)


HERMES = CallSpelling(
    ArgumentStyle.OBJECT,
    call_begin="<tool_call>\n",
    call_end="\n</tool_call>",
    separator="\n",
    name_key="name",
    arguments_key="arguments",
)
"""Calls of Hermes and Qwen."""
LFM = CallSpelling(ArgumentStyle.KEYWORDS, begin="<|tool_call_start|>[", separator=", ", end="]<|tool_call_end|>")
"""Calls of LFM 2."""


def _items(arguments: Mapping[str, Any] | str) -> Sequence[tuple[str, Any]]:
    """Returns the arguments by their keys; text that is no object as one argument."""
    return [("arguments", arguments)] if isinstance(arguments, str) else list(arguments.items())


def _json_object(arguments: Mapping[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else _json(arguments)


def _keyword(value: Any) -> str:
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    return _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
