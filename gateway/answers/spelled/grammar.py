"""Grammar of calls that are spelled in pieces (`draftwire.CallSpelling`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftwire import CallSpelling
from gateway.answers.lark_rules import LarkRules, json_term, literal
from gateway.answers.spelled.literal_grammar import LiteralGrammar
from gateway.answers.spelled.parameter_type import resolved, types_of
from gateway.answers.spelled.parser import split_begin
from gateway.answers.tool import Tool

_ID = "/[A-Za-z0-9_-]{1,40}/"
_KEY = "/[A-Za-z0-9_.-]+/"


class SpelledGrammar:
    """Writes the rules of calls. What begins the first one, up to its first marker, is left to the caller."""

    def __init__(self, rules: LarkRules, spelling: CallSpelling, tools: Sequence[Tool], *, several: bool) -> None:
        """several: whether there may be several calls."""
        self._rules = rules
        self._spelling = spelling
        self._several = several
        self.marker, self._rest = split_begin(spelling)
        """The marker that begins the first call, and what stands between it and the call."""
        self._call = rules.new(" | ".join(self._tool(tool) for tool in tools))

    def call(self) -> str:
        """Returns one call behind the marker."""
        return f"{self._rules.terms(self._rest)} {self._call}"

    def section(self) -> str:
        """Returns the calls behind the marker that begins them, with what ends them."""
        spelling = self._spelling
        again = self._rules.terms(spelling.separator + spelling.call_begin)
        more = f"({again} {self._call})* " if self._several and again else ""
        return f"{self.call()} {more}{self._rules.terms(spelling.end)}"

    def _tool(self, tool: Tool) -> str:
        spelling, rules = self._spelling, self._rules
        match spelling.style:
            case "object":
                number = f'{literal("{" + json.dumps(spelling.id_key) + ": " + chr(34))} {_ID} "\\", "'
                begin = number if spelling.id_key else '"{"'
                head = f'"{spelling.name_key}": {json.dumps(tool.name)}, "{spelling.arguments_key}": '
                call = f'{begin} {literal(head)} {json_term(tool.schema, strict=tool.strict, name=tool.name)} "}}"'
            case "json":
                call = f"{literal(tool.name)} {rules.terms(spelling.name_end)} {_json(tool)}"
            case "parameters":
                call = f"{literal(tool.name)} {rules.terms(spelling.name_end)} {self._parameters(tool)}"
            case _:
                written = LiteralGrammar(rules, spelling, tool)
                call = f"{literal(tool.name)} {written.arguments()}"
        return f"{call} {rules.terms(spelling.call_end)}"

    def _parameters(self, tool: Tool) -> str:
        spelling, rules = self._spelling, self._rules
        root = resolved(tool.schema, tool.schema)
        begin, middle = rules.terms(spelling.key_begin), rules.terms(spelling.key_end)
        known = root.get("properties") if isinstance(root, Mapping) else None
        if not isinstance(known, Mapping) or not known:
            closed = isinstance(root, Mapping) and root.get("additionalProperties") is False
            return "" if closed else f"({begin} {_KEY} {middle} {self._free()})*"
        required = root.get("required")
        needed = required if isinstance(required, list) else []
        written = [
            f"({begin} {literal(key)} {middle} {self._value(tool, schema)})" + ("" if key in needed else "?")
            for key, schema in known.items()
        ]
        return " ".join(written)

    def _value(self, tool: Tool, schema: Any) -> str:
        """Returns a value with what ends it."""
        end = self._rules.terms(self._spelling.value_end)
        choices = choices_of(schema, tool.schema)
        if choices is not None:
            texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in choices]
            return f"({' | '.join(map(literal, texts))}) {end}"
        types = types_of(schema, tool.schema)
        if types is None or "string" in types:
            return self._free()
        return f"{json_term(with_definitions(schema, tool.schema), strict=tool.strict, name=tool.name)} {end}"

    def _free(self) -> str:
        """Returns any text with what ends a value."""
        name = self._rules.reserve()
        self._rules.until(name, self._spelling.value_end)
        return name


def choices_of(schema: Any, root: Mapping[str, Any]) -> list[Any] | None:
    """Returns the values that a schema lists; None if it lists none."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) and found else None


def with_definitions(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part of a schema as a schema of its own, with the definitions that it may refer to."""
    shared = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**shared, **schema} if isinstance(schema, Mapping) else shared


def _json(tool: Tool) -> str:
    return json_term(tool.schema, strict=tool.strict, name=tool.name)
