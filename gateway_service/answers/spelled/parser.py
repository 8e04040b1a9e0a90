"""Calls spelled in pieces found in the chat template (`draftwire.CallSpelling`): parsed, and turned into JSON."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from enum import Enum, auto
from typing import Any

from draftwire import CallSpelling
from gateway_service.answers.json_call import JsonCall
from gateway_service.answers.part import CallArguments, CallStart, Content, Part, StepwiseParser
from gateway_service.answers.spelled.call_arguments import CallArgumentsReader, arguments_reader
from gateway_service.answers.spelled.expected_text import ExpectedText, begins, split_begin, without_space
from gateway_service.answers.text_until import WHITE_SPACE, TextUntil, TrimmedText, end_of

_NAME = re.compile(r"[\w.-]*")
_LONGEST_NAME = 256


class _At(Enum):
    """A place in an answer."""

    TEXT = auto()
    HEAD = auto()
    NAME = auto()
    ARGUMENTS = auto()
    OBJECT = auto()
    CALL_END = auto()
    BETWEEN = auto()


class SpelledParser(StepwiseParser):
    """Reads text and calls in any order."""

    def __init__(
        self,
        tools: Collection[str],
        spelling: CallSpelling,
        schemas: Mapping[str, Mapping[str, Any]],
        *,
        enforced: bool = False,
    ) -> None:
        """tools: names of the tools that there are. schemas: JSON schemas of their arguments, where known. enforced:
        whether a grammar holds for calls."""
        self._tools = tools
        self._spelling = spelling
        self._schemas = schemas
        self._enforced = enforced
        self._marker, self._head_rest = split_begin(spelling)
        self._markers = begins(spelling)
        self._calls = 0
        self._at = _At.TEXT
        self._text = TextUntil(*self._markers)
        self._content = TrimmedText(start=True)
        self._raw: list[str] = []
        """The text since the last call ended or the marker began, until the next call is known."""
        self._expected = ExpectedText([self._marker])
        self._name: list[str] = []
        self._object = JsonCall(0, tools)
        self._reader: CallArgumentsReader = arguments_reader(spelling, {})
        self._started = False

    def _step(self, text: str, at: int) -> tuple[list[Part], int]:
        match self._at:
            case _At.TEXT:
                return self._in_text(text, at)
            case _At.HEAD | _At.CALL_END | _At.BETWEEN:
                return self._in_expected(text, at)
            case _At.NAME:
                return self._in_name(text, at)
            case _At.ARGUMENTS:
                return self._in_arguments(text, at)
            case _At.OBJECT:
                return self._in_object(text, at)

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest."""
        match self._at:
            case _At.OBJECT:
                return self._object.end()
            case _At.ARGUMENTS:
                parts: list[Part] = [] if self._started else [CallStart(self._calls, "".join(self._name))]
                rest = "" if cut else self._reader.end()
                return [*parts, CallArguments(self._calls, rest)] if rest else parts
            case _At.NAME if (name := "".join(self._name)) in self._tools:
                return [CallStart(self._calls, name)]
            case _At.TEXT:
                return [Content(self._content.push(self._text.rest(cut=cut)) + self._content.rest())]
        return []

    def _in_text(self, text: str, at: int) -> tuple[list[Part], int]:
        before, at = self._text.push(text, at)
        if (found := self._text.found) is not None:
            self._text = TextUntil(*self._markers)
            self._raw = [found]
            self._expect(_At.HEAD, [self._head_rest if found == self._marker else ""])
        return [Content(self._content.push(before))], at

    def _expect(self, at: _At, texts: Collection[str]) -> None:
        """Goes to a place where one of several texts has to come; beyond it if they are empty."""
        texts = [text for text in texts if text.strip()]
        self._at, self._expected = at, ExpectedText(texts)
        if not texts:
            self._go_on(at, "")

    def _in_expected(self, text: str, at: int) -> tuple[list[Part], int]:
        expected = self._expected
        end = expected.push(text, at)
        if expected.found is not None:
            self._raw.append(expected.raw)
            self._go_on(self._at, expected.found)
        elif expected.failed and self._at is _At.HEAD:
            self._raw.append(expected.raw)
            return self._fail(), end
        elif expected.failed:
            self._at = _At.TEXT
            self._text.hold(expected.raw.lstrip())
        return [], end

    def _go_on(self, at: _At, found: str) -> None:
        """Goes to the place behind a text that came."""
        match at:
            case _At.HEAD:
                self._begin_call()
            case _At.CALL_END:
                self._behind_call()
            case _:
                if found == without_space(self._spelling.end):
                    self._at = _At.TEXT
                else:
                    self._begin_call()

    def _begin_call(self) -> None:
        self._started, self._name = False, []
        if self._spelling.style == "object":
            self._at = _At.OBJECT
            keys = self._spelling.name_key, (self._spelling.arguments_key,)
            self._object = JsonCall(self._calls, self._tools, *keys)
        else:
            self._at = _At.NAME

    def _in_name(self, text: str, at: int) -> tuple[list[Part], int]:
        if not self._name:
            begin, at = at, end_of(WHITE_SPACE, text, at)
            self._raw.append(text[begin:at])
        end = end_of(_NAME, text, at)
        if end > at:
            self._name.append(text[at:end])
            self._raw.append(text[at:end])
        name = "".join(self._name)
        if end == len(text) and len(name) <= _LONGEST_NAME:
            return [], end
        if name not in self._tools:
            return self._fail(), end
        self._at = _At.ARGUMENTS
        self._reader = arguments_reader(self._spelling, self._schemas.get(name, {}), enforced=self._enforced)
        return [], end

    def _in_arguments(self, text: str, at: int) -> tuple[list[Part], int]:
        reader = self._reader
        found, end = reader.push(text, at)
        parts: list[Part] = []
        if not self._started:
            self._raw.append(text[at:end])
            if reader.failed:
                return self._fail(), end
            if found:
                parts.append(CallStart(self._calls, "".join(self._name)))
                self._begun()
        if found:
            parts.append(CallArguments(self._calls, found))
        if reader.ended:
            self._calls += 1
            if self._spelling.style == "parameters":
                self._behind_call()
                if left := reader.left():
                    self._at = _At.TEXT
                    self._text.hold(left.lstrip())
            else:
                self._expect(_At.CALL_END, [self._spelling.call_end])
        return parts, end

    def _in_object(self, text: str, at: int) -> tuple[list[Part], int]:
        call = self._object
        parts, end = call.push(text, at)
        if call.started and not self._started:
            self._begun()
        if call.ended:
            self._calls += 1
            self._expect(_At.CALL_END, [self._spelling.call_end])
        elif call.failed:
            parts = self._pass_on("".join(self._raw) + call.text)
        return parts, end

    def _begun(self) -> None:
        """Notes that a call has begun to be passed on."""
        self._started, self._raw = True, []
        self._content.drop()

    def _behind_call(self) -> None:
        """Goes to what may follow a call: another one, the end of all, or text."""
        spelling = self._spelling
        if spelling.begin.strip():
            again = [spelling.separator + spelling.call_begin, spelling.call_begin]
            self._expect(_At.BETWEEN, [spelling.end, *again])
        else:
            self._at = _At.TEXT

    def _fail(self) -> list[Part]:
        """Goes back to text where no call came. A marker may begin in what stands behind the one that came."""
        came = "".join(self._raw)
        begin = max(came.rfind(each) + len(each) if each in came else 0 for each in self._markers)
        parts = self._pass_on(came[:begin])
        self._text.hold(came[begin:])
        return parts

    def _pass_on(self, text: str) -> list[Part]:
        """Passes on as text what turned out to be no call."""
        self._raw, self._at = [], _At.TEXT
        return [Content(self._content.push(text))]
