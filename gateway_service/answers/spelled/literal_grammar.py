"""Grammar of arguments written as literals (`LiteralArguments` reads them)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from draftwire import CallSpelling
from gateway_service.answers.lark_rules import LarkRules, literal
from gateway_service.answers.spelled.argument_schema import (
    choices_of,
    is_closed,
    properties,
    required,
    resolved,
    types_of,
    with_definitions,
)
from gateway_service.answers.tool import Tool

_KEY = "/[A-Za-z_][A-Za-z0-9_]*/"
_PYTHON_STRING = r"""/'([^'\\\n]|\\[nrt'"\\])*'/"""
_PLAIN = ("integer", "number", "boolean", "null")
_TYPES = ("string", *_PLAIN, "object", "array")


class LiteralGrammar:
    """Writes the rules of one tool's arguments."""

    def __init__(self, rules: LarkRules, spelling: CallSpelling, tool: Tool) -> None:
        self._rules = rules
        self._tool, self._root = tool, tool.schema
        self._python = spelling.style == "keywords"
        self._colon, self._comma = ("=", ", ") if self._python else (":", ",")
        self._quote = spelling.quote
        self._known: dict[str, str] = {}
        """Rules by the reference or the kind of value that they are for."""

    def arguments(self) -> str:
        """Returns the arguments with what encloses them."""
        begin, end = ('"("', '")"') if self._python else ('"{"', '"}"')
        return f"{begin} {self._members(self._root, self._value)} {end}"

    def _members(self, schema: Any, value: Any) -> str:
        known, needed = properties(schema, self._root), required(schema, self._root, self._rules.count)
        if not known:
            if is_closed(schema, self._root):
                return ""
            any_member = self._rules.new(f"{_KEY} {literal(self._colon)} {self._any()}")
            return f"({any_member} ({literal(self._comma)} {any_member})*)?"
        # Gemma's templates sort the keys of all that they render.
        keys = list(known) if self._python else sorted(known, key=str.lower)
        return self._sequence([(f"{literal(key + self._colon)} {value(known[key])}", key in needed) for key in keys])

    def _sequence(self, items: Sequence[tuple[str, bool]]) -> str:
        """Returns items in their order, with commas between those that are there; the others may be missing."""
        comma = literal(self._comma)
        first, later = '""', '""'
        """Text that may follow if no item has come, and if one has."""
        for item, needed in reversed(items):
            name = self._rules.new(f"{item} {later}")
            after = f"{comma} {name}"
            first, later = (
                (name, self._rules.new(after))
                if needed
                else (self._rules.new(f"{name} | {first}"), self._rules.new(f"{after} | {later}"))
            )
        return first

    def _value(self, schema: Any) -> str:
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if isinstance(reference, str):
            if reference not in self._known:
                self._known[reference] = self._rules.reserve()
                self._rules.define(self._known[reference], self._value(resolved(schema, self._root)))
            return self._known[reference]
        if not isinstance(schema, Mapping):
            return self._any()
        if (listed := choices_of(schema, self._root)) is not None:
            return "(" + " | ".join(map(self._literal, listed)) + ")"
        for union in ("anyOf", "oneOf"):
            if isinstance(schema.get(union), list) and schema[union]:
                return "(" + " | ".join(map(self._value, schema[union])) + ")"
        types = types_of(schema, self._root, self._rules.count)
        if types is None:
            return self._any()
        return "(" + " | ".join(self._of_type(schema, each) for each in sorted(types)) + ")"

    def _of_type(self, schema: Mapping[str, Any], kind: str) -> str:
        if kind == "string":
            return self._string()
        if self._python and kind == "boolean":
            return '("True" | "False")'
        if self._python and kind == "null":
            return '"None"'
        if self._python or kind in _PLAIN:
            return self._rules.tool_term(self._tool, with_definitions({**schema, "type": kind}, self._root))
        if kind == "array":
            item = self._rules.new(self._value(schema.get("items", True)))
            return f'"[" ({item} ("," {item})*)? "]"'
        if kind == "object":
            return f'"{{" {self._members(schema, self._value)} "}}"'
        return self._any()

    def _any(self) -> str:
        """Returns a value of any type."""
        if "" not in self._known:
            self._known[""] = self._rules.reserve()
            each = " | ".join(self._of_type({}, kind) for kind in _TYPES if kind != "integer")
            self._rules.define(self._known[""], each)
        return self._known[""]

    def _string(self) -> str:
        if self._python:
            return _PYTHON_STRING
        if not self._quote:
            return self._rules.tool_term(self._tool, {"type": "string"})
        if "string" not in self._known:
            name = self._known["string"] = self._rules.reserve()
            self._rules.until(f"{name}_end", self._quote)
            self._rules.define(name, f"{self._rules.terms(self._quote)} {name}_end")
        return self._known["string"]

    def _literal(self, value: Any) -> str:
        if self._python and (value is None or isinstance(value, (bool, str))):
            return literal(repr(value))
        if isinstance(value, str) and self._quote:
            return self._rules.terms(f"{self._quote}{value}{self._quote}")
        return literal(json.dumps(value, ensure_ascii=False))
