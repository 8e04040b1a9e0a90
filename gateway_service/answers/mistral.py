"""Answers of Mistral: ``[TOOL_CALLS]`` and a JSON list of calls, or ``[TOOL_CALLS]NAME[ARGS]{...}`` for each call."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto

from gateway_service.answers.json_call import JsonCall, JsonValue
from gateway_service.answers.part import CallArguments, CallStart, Content, Part, StepwiseParser
from gateway_service.answers.text_until import WHITE_SPACE, TextUntil, TrimmedText, end_of

CALLS, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*")
_NAME = re.compile(r"\s*([\w.-]+)")
_LONGEST_HEAD = 256
_BETWEEN = re.compile(r"[\s,]*")


class _At(Enum):
    """A place in an answer."""

    TEXT = auto()
    MARKED = auto()
    LIST = auto()
    CALL = auto()
    HEAD = auto()
    ARGUMENTS = auto()


class MistralParser(StepwiseParser):
    """Reads text, and calls in either form after the mark."""

    def __init__(self, tools: Collection[str]) -> None:
        """tools: names of the tools that there are."""
        self._tools = tools
        self._calls = 0
        self._at = _At.TEXT
        self._text = TextUntil(CALLS)
        self._content = TrimmedText(start=True)
        self._raw: list[str] = []
        """Text since the mark, or since the last call, that is none of a call so far."""
        self._head = ""
        """The head of a call so far."""
        self._call = JsonCall(0, tools)
        self._value = JsonValue()

    def _step(self, text: str, at: int) -> tuple[list[Part], int]:
        match self._at:
            case _At.TEXT:
                return self._in_text(text, at)
            case _At.CALL:
                return self._in_call(text, at)
            case _At.HEAD:
                return self._in_head(text, at)
            case _At.ARGUMENTS:
                return self._in_arguments(text, at)
        return self._between(text, at)

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest."""
        match self._at:
            case _At.TEXT:
                return [Content(self._content.push(self._text.rest(cut=cut)) + self._content.rest())]
            case _At.CALL:
                return self._call.end()
            case _At.HEAD if (head := _NAME.match(self._head)) is not None and head[1] in self._tools:
                return [CallStart(self._calls, head[1])]
        return []

    def _in_text(self, text: str, at: int) -> tuple[list[Part], int]:
        before, at = self._text.push(text, at)
        if self._text.found is not None:
            self._text = TextUntil(CALLS)
            self._raw, self._at = [CALLS], _At.MARKED
        return [Content(self._content.push(before))], at

    def _between(self, text: str, at: int) -> tuple[list[Part], int]:
        """Reads what stands before a call: behind the mark, or in the list."""
        begin = at
        at = end_of(WHITE_SPACE if self._at is _At.MARKED else _BETWEEN, text, at)
        self._raw.append(text[begin:at])
        if at == len(text):
            return [], at
        letter = text[at]
        if self._at is _At.MARKED and letter != "[":
            self._at, self._head = _At.HEAD, ""
            return [], at
        if letter == "{":
            self._at, self._call = _At.CALL, JsonCall(self._calls, self._tools)
            return [], at
        self._raw.append(letter)
        if letter == "[":
            self._at = _At.LIST
        elif letter == "]":
            self._raw, self._at = [], _At.TEXT
        else:
            return self._fail("".join(self._raw)), at + 1
        return [], at + 1

    def _in_call(self, text: str, at: int) -> tuple[list[Part], int]:
        parts, at = self._call.push(text, at)
        if self._call.started:
            self._content.drop()
            self._raw = []
        if self._call.ended:
            self._at = _At.LIST
            self._calls += 1
        elif self._call.failed:
            parts = self._fail("".join(self._raw) + self._call.text)
        return parts, at

    def _in_head(self, text: str, at: int) -> tuple[list[Part], int]:
        brace = text.find("{", at, at + _LONGEST_HEAD)
        end = brace if brace >= 0 else min(len(text), at + _LONGEST_HEAD)
        self._head += text[at:end]
        if len(self._head) > _LONGEST_HEAD:
            return self._fail("".join(self._raw) + self._head), end
        if brace < 0:
            return [], end
        head = _HEAD.fullmatch(self._head)
        if head is None or head[1] not in self._tools:
            return self._fail("".join(self._raw) + self._head), end
        self._content.drop()
        self._value, self._at = JsonValue(), _At.ARGUMENTS
        return [CallStart(self._calls, head[1])], end

    def _in_arguments(self, text: str, at: int) -> tuple[list[Part], int]:
        end = self._value.take(text, at)
        index = self._calls
        if self._value.ended:
            self._calls += 1
            self._raw, self._at = [], _At.TEXT
        return [CallArguments(index, text[at:end])], end

    def _fail(self, text: str) -> list[Part]:
        self._raw, self._at = [], _At.TEXT
        return [Content(self._content.push(text))]
