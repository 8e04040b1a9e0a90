"""The grammar of an answer that calls tools, in Lark's notation, by the format of the chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from draftwire import ChatFormat
from gateway_service.answers import harmony, hermes, mistral
from gateway_service.answers.answer_form import AnswerForm
from gateway_service.answers.lark_rules import LarkRules, literal
from gateway_service.answers.spelled.argument_schema import DEFINITIONS, with_definitions
from gateway_service.answers.spelled.grammar import SpelledGrammar
from gateway_service.answers.tool import Tool, ToolUse


def call_grammar(chat_format: ChatFormat, use: ToolUse, form: AnswerForm) -> str:
    """Returns the grammar of the whole answer, reasoning included. form: that of an answer without calls.

    Raises:
        RecursionError: a schema is nested too deeply.
        GatewayError: the form cannot be combined with tools, or the tools are too large.
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
        self._rules = LarkRules(chat_format.marker_ids)

    def text(self) -> str:
        by_format: dict[str, Callable[[], str]] = {
            "hermes": self._hermes,
            "llama": self._llama,
            "mistral": self._mistral,
            "mistral_args": self._mistral_args,
            "harmony": self._harmony,
            "spelled": self._spelled,
        }
        assert self._format.tool_calls is not None
        answer = by_format[self._format.tool_calls]()
        return self._rules.grammar(f"{self._reasoning()}{answer}")

    def _hermes(self) -> str:
        body = self._choice(lambda tool: self._object(tool, "arguments"))
        self._rules.add(f'call: "\\n" {body} "\\n" {self._rules.terms(hermes.END)}')
        begin = self._rules.terms(hermes.BEGIN)
        calls = f'{begin} call ("\\n" {begin} call)*' if self._several else f"{begin} call"
        return self._answer(calls) or self._auto(hermes.BEGIN, "call")

    def _llama(self) -> str:
        spell = self._schema_object if self._form.schema() is not None else self._object
        body = self._choice(lambda tool: spell(tool, "parameters"))
        if (answer := self._answer(body)) is not None:
            return answer
        self._rules.add("PLAIN: /([ \\n]*[^{ \\n](.|\\n)*)?/")
        return f"({body} | PLAIN)"

    def _mistral(self) -> str:
        self._rules.add("item: " + self._choice(lambda tool: self._object(tool, "arguments")))
        items = 'item (", " item)*' if self._several else "item"
        self._rules.add(f'call: " "? "[" {items} "]"')
        calls = f"{self._rules.terms(mistral.CALLS)} call"
        return self._answer(calls) or self._auto(mistral.CALLS, "call", last=True)

    def _mistral_args(self) -> str:
        arguments = self._rules.terms(mistral.ARGUMENTS)
        call = self._choice(lambda tool: f"{literal(tool.name)} {arguments} {self._rules.tool_term(tool)}")
        self._rules.add(f"call: {call}")
        begin = self._rules.terms(mistral.CALLS)
        calls = f"({begin} call)+" if self._several else f"{begin} call"
        return self._answer(calls) or self._auto(mistral.CALLS, "call")

    def _harmony(self) -> str:
        channel, message = self._rules.terms(harmony.CHANNEL), self._rules.terms(harmony.MESSAGE)
        end, start = self._rules.terms(harmony.END), self._rules.terms(harmony.START)
        typed = f'" " {self._rules.terms("<|constrain|>")} "json" {message}'
        call = self._choice(
            lambda tool: (
                f"{channel} {literal(f'commentary to=functions.{tool.name}')} {typed} {self._rules.tool_term(tool)}"
            )
        )
        if harmony.END in self._format.marker_ids:
            self._rules.add(f'analysis: {channel} "analysis" {message} TEXT {end} {start} "assistant"')
        else:
            self._rules.add(f"analysis_end[lazy]: TEXT {literal(harmony.END)}")
            self._rules.add(f'analysis: {channel} "analysis" {message} analysis_end {start} "assistant"')
        if self._required:
            return f"analysis? {call}"
        final = self._form.lark() if self._form else "TEXT"
        return f'analysis? ({call} | {channel} "final" {message} {final})'

    def _spelled(self) -> str:
        spelling = self._format.spelling
        assert spelling is not None
        spelled = SpelledGrammar(self._rules, spelling, self._tools, several=self._several)
        if spelling.begin.strip():
            self._rules.add(f"call: {spelled.section()}")
            calls = f"{self._rules.terms(spelled.marker)} call"
        else:
            self._rules.add(f"call: {spelled.call()}")
            begin = self._rules.terms(spelled.marker)
            between = f"{literal(spelling.separator)}? " if spelling.separator else ""
            calls = f"{begin} call ({between}{begin} call)*" if self._several else f"{begin} call"
        last, bare = bool(spelling.begin.strip()), (spelled.bare, spelled.named)
        return self._answer(calls) or self._auto(spelled.marker, "call", last=last, bare=bare)

    def _answer(self, calls: str) -> str | None:
        """Returns the answer that consists of calls alone, or of calls or the form; None if text is free."""
        if self._required:
            return calls
        if not self._form:
            return None
        form, begin = self._form.lark(), self._format.content_begin
        if begin:
            end = self._rules.terms(self._format.content_end)
            form = f"({self._rules.terms(begin)})? {form} ({end})?"
        return f"({calls} | {form})"

    def _auto(self, marker: str, call: str, *, last: bool = False, bare: tuple[str, str] = ("", "")) -> str:
        """Returns text with calls after the marker; at most one if only one is allowed, or if calls come last. bare:
        what begins a call whose marker was left out, and what follows; a call, too, where it is read as one."""
        self._rules.until("before_call", marker)
        called = f"before_call {call}"
        if bare[0]:
            self._rules.until("before_bare", bare[0])
            called = f"({called} | before_bare {bare[1]})"
        text = "TEXT"
        if self._format.content_begin in self._format.marker_ids:
            begin, end = (self._rules.terms(each) for each in (self._format.content_begin, self._format.content_end))
            text = f"(({begin})? TEXT ({end})?)"
        if self._several and not last:
            return f"({called})* {text}"
        return f"({called} | {text})"

    def _reasoning(self) -> str:
        """Returns the rule for the reasoning before the answer, with what separates them."""
        if not self._format.reasoning_end:
            return ""
        self._rules.until("reasoning_end", self._format.reasoning_end)
        if self._format.reasoning_open:
            return "reasoning_end GAP? "
        return f"({self._rules.terms(self._format.reasoning_begin)} reasoning_end GAP?)? "

    def _choice(self, spell: Callable[[Tool], str]) -> str:
        return "(" + " | ".join(spell(tool) for tool in self._tools) + ")"

    def _object(self, tool: Tool, key: str) -> str:
        begin = f'{{"name": {json.dumps(tool.name)}, "{key}": '
        return f"{literal(begin)} {self._rules.tool_term(tool)} {literal('}')}"

    def _schema_object(self, tool: Tool, key: str) -> str:
        """Returns a call as a schema: next to a form that is JSON, too, both have to consist of the same lexemes."""
        schema = {name: each for name, each in tool.schema.items() if name not in DEFINITIONS}
        call = {"name": {"const": tool.name}, key: schema}
        whole = {"type": "object", "properties": call, "required": list(call), "additionalProperties": False}
        return self._rules.tool_term(tool, with_definitions(whole, tool.schema))


def names(tools: Sequence[Tool]) -> frozenset[str]:
    """Returns the names of tools."""
    return frozenset(tool.name for tool in tools)
