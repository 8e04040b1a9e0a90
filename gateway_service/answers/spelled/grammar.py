"""Grammar of calls that are spelled in pieces (`draftwire.CallSpelling`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from draftwire import CallSpelling
from gateway_service.answers.lark_rules import LarkRules, literal
from gateway_service.answers.spelled.argument_schema import (
    choices_of,
    is_closed,
    properties,
    required,
    types_of,
    with_definitions,
)
from gateway_service.answers.spelled.expected_text import bare_begin, split_begin
from gateway_service.answers.spelled.literal_grammar import LiteralGrammar
from gateway_service.answers.tool import Tool

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
        self.bare = bare_begin(spelling)
        """The beginning of a call without that marker, if models leave it out; else empty."""
        self.named = rules.new(" | ".join(self._tool(tool) for tool in tools))
        """The rule of a call, from its name or object on."""

    def call(self) -> str:
        """Returns one call behind the marker."""
        return f"{self._rules.terms(self._rest)} {self.named}"

    def section(self) -> str:
        """Returns the calls behind the marker that begins them, with what ends them."""
        spelling = self._spelling
        again = self._rules.terms(spelling.separator + spelling.call_begin)
        more = f"({again} {self.named})* " if self._several and again else ""
        return f"{self.call()} {more}{self._rules.terms(spelling.end)}"

    def _tool(self, tool: Tool) -> str:
        spelling, rules = self._spelling, self._rules
        match spelling.style:
            case "object":
                number = f'{literal("{" + json.dumps(spelling.id_key) + ": " + chr(34))} {_ID} "\\", "'
                begin = number if spelling.id_key else '"{"'
                head = f'"{spelling.name_key}": {json.dumps(tool.name)}, "{spelling.arguments_key}": '
                call = f'{begin} {literal(head)} {rules.tool_term(tool)} "}}"'
            case "json":
                call = f"{literal(tool.name)} {rules.terms(spelling.name_end)} {rules.tool_term(tool)}"
            case "parameters":
                call = f"{literal(tool.name)} {rules.terms(spelling.name_end)} {self._parameters(tool)}"
            case _:
                written = LiteralGrammar(rules, spelling, tool)
                call = f"{literal(tool.name)} {written.arguments()}"
        return f"{call} {rules.terms(spelling.call_end)}"

    def _parameters(self, tool: Tool) -> str:
        spelling, rules = self._spelling, self._rules
        begin, middle = rules.terms(spelling.key_begin), rules.terms(spelling.key_end)
        known, needed = properties(tool.schema, tool.schema), required(tool.schema, tool.schema, rules.count)
        if not known:
            return "" if is_closed(tool.schema, tool.schema) else f"({begin} {_KEY} {middle} {self._free()})*"
        written = [
            f"({begin} {literal(key)} {middle} {self._value(tool, schema, key)})" + ("" if key in needed else "?")
            for key, schema in known.items()
        ]
        return " ".join(written)

    def _value(self, tool: Tool, schema: Any, key: str) -> str:
        """Returns a value with what ends it."""
        end = self._rules.terms(self._spelling.value_end)
        choices = choices_of(schema, tool.schema)
        if choices is not None:
            texts = [each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in choices]
            return f"{self._rules.new(' | '.join(map(literal, texts)))} {end}"
        types = types_of(schema, tool.schema, self._rules.count)
        if types is None or "string" in types:
            return self._free()
        value = self._rules.tool_term(tool, with_definitions(schema, tool.schema), f"properties.{key}")
        return f"{value} {end}"

    def _free(self) -> str:
        """Returns any text with what ends a value."""
        name = self._rules.reserve()
        self._rules.until(name, self._spelling.value_end)
        return name
