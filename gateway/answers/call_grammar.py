"""The grammar of an answer that calls tools, in Lark's notation, by the format of the chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from draftwire import ChatFormat
from gateway.answers import harmony, hermes, mistral
from gateway.answers.answer_form import SPACING, AnswerForm
from gateway.answers.tool import Tool, ToolUse


def call_grammar(chat_format: ChatFormat, use: ToolUse, form: AnswerForm) -> str:
    """Returns the grammar of the whole answer, reasoning included. form: that of an answer without calls.

    Raises:
        RecursionError: a schema is nested too deeply.
        GatewayError: the form cannot be combined with tools.
    """
    return _Grammar(chat_format, use, form).text()


class _Grammar:
    """Rules of one grammar."""

    def __init__(self, chat_format: ChatFormat, use: ToolUse, form: AnswerForm) -> None:
        self._format = chat_format
        self._form = form
        self._tools = use.callable
        self._required = use.mode == "required"
        self._several = use.parallel and use.only is None
        self._rules = ["TEXT: /(.|\\n)*/", "GAP: /\\n{1,2}/"]

    def text(self) -> str:
        by_format: dict[str, Callable[[], str]] = {
            "hermes": self._hermes,
            "llama": self._llama,
            "mistral": self._mistral,
            "mistral_args": self._mistral_args,
            "harmony": self._harmony,
        }
        assert self._format.tool_calls is not None
        answer = by_format[self._format.tool_calls]()
        return "\n".join([f"start: {self._reasoning()}{answer}", *self._rules]) + "\n"

    def _hermes(self) -> str:
        body = self._choice(lambda tool: self._object(tool, "arguments"))
        self._rules.append(f'call: "\\n" {body} "\\n" {self._marker(hermes.END)}')
        begin = self._marker(hermes.BEGIN)
        calls = f'{begin} call ("\\n" {begin} call)*' if self._several else f"{begin} call"
        return self._answer(calls) or self._auto(hermes.BEGIN, "call")

    def _llama(self) -> str:
        spell = self._schema_object if self._form.schema() is not None else self._object
        body = self._choice(lambda tool: spell(tool, "parameters"))
        if (answer := self._answer(body)) is not None:
            return answer
        self._rules.append("PLAIN: /([ \\n]*[^{ \\n](.|\\n)*)?/")
        return f"({body} | PLAIN)"

    def _mistral(self) -> str:
        self._rules.append("item: " + self._choice(lambda tool: self._object(tool, "arguments")))
        items = 'item (", " item)*' if self._several else "item"
        self._rules.append(f'call: " "? "[" {items} "]"')
        calls = f"{self._marker(mistral.CALLS)} call"
        return self._answer(calls) or self._auto(mistral.CALLS, "call", last=True)

    def _mistral_args(self) -> str:
        arguments = self._marker(mistral.ARGUMENTS)
        call = self._choice(lambda tool: f"{_literal(tool.name)} {arguments} {_schema(tool)}")
        self._rules.append(f"call: {call}")
        begin = self._marker(mistral.CALLS)
        calls = f"({begin} call)+" if self._several else f"{begin} call"
        return self._answer(calls) or self._auto(mistral.CALLS, "call")

    def _harmony(self) -> str:
        channel, message = self._marker(harmony.CHANNEL), self._marker(harmony.MESSAGE)
        end, start = self._marker(harmony.END), self._marker(harmony.START)
        typed = f'" " {self._marker("<|constrain|>")} "json" {message}'
        call = self._choice(
            lambda tool: f"{channel} {_literal(f'commentary to=functions.{tool.name}')} {typed} {_schema(tool)}"
        )
        if harmony.END in self._format.marker_ids:
            self._rules.append(f'analysis: {channel} "analysis" {message} TEXT {end} {start} "assistant"')
        else:
            self._rules.append(f"analysis_end[lazy]: TEXT {_literal(harmony.END)}")
            self._rules.append(f'analysis: {channel} "analysis" {message} analysis_end {start} "assistant"')
        if self._required:
            return f"analysis? {call}"
        final = self._form.lark() if self._form else "TEXT"
        return f'analysis? ({call} | {channel} "final" {message} {final})'

    def _answer(self, calls: str) -> str | None:
        """Returns the answer that consists of calls alone, or of calls or the form; None if text is free."""
        if self._required:
            return calls
        return f"({calls} | {self._form.lark()})" if self._form else None

    def _auto(self, marker: str, call: str, *, last: bool = False) -> str:
        """Returns text with calls after the marker; at most one if only one is allowed, or if calls come last."""
        self._until("before_call", marker)
        if self._several and not last:
            return f"(before_call {call})* TEXT"
        return f"(before_call {call} | TEXT)"

    def _reasoning(self) -> str:
        """Returns the rule for the reasoning before the answer, with what separates them."""
        if not self._format.reasoning_end:
            return ""
        self._until("reasoning_end", self._format.reasoning_end)
        if self._format.reasoning_open:
            return "reasoning_end GAP? "
        return f"({self._marker(self._format.reasoning_begin)} reasoning_end GAP?)? "

    def _until(self, name: str, marker: str) -> None:
        """Adds a rule for text that ends with a marker."""
        lazy = "" if marker in self._format.marker_ids else "[lazy]"
        self._rules.append(f"{name}{lazy}: TEXT {self._marker(marker)}")

    def _marker(self, marker: str) -> str:
        token = self._format.marker_ids.get(marker)
        return _literal(marker) if token is None else f"<[{token}]>"

    def _choice(self, spell: Callable[[Tool], str]) -> str:
        return "(" + " | ".join(spell(tool) for tool in self._tools) + ")"

    @staticmethod
    def _object(tool: Tool, key: str) -> str:
        begin = f'{{"name": {json.dumps(tool.name)}, "{key}": '
        return f"{_literal(begin)} {_schema(tool)} {_literal('}')}"

    @staticmethod
    def _schema_object(tool: Tool, key: str) -> str:
        """Returns a call as a schema: beside a form that is JSON, too, both have to consist of the same lexemes."""
        schema = dict(tool.schema)
        shared = {name: schema.pop(name) for name in ("$defs", "definitions") if name in schema}
        call = {"name": {"const": tool.name}, key: schema}
        whole = {"type": "object", "properties": call, "required": list(call), "additionalProperties": False}
        return _json(whole | shared, tool)


def _schema(tool: Tool) -> str:
    return _json(tool.schema, tool)


def _json(schema: dict[str, Any], tool: Tool) -> str:
    spacing = SPACING if tool.strict else SPACING | {"lenient": True}
    return "%json " + json.dumps(schema | {"x-guidance": spacing})


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def names(tools: Sequence[Tool]) -> frozenset[str]:
    """Returns the names of tools."""
    return frozenset(tool.name for tool in tools)
