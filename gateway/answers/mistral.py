"""Answers of Mistral: ``[TOOL_CALLS]`` and a JSON list of calls, or ``[TOOL_CALLS]NAME[ARGS]{...}`` for each call."""

from __future__ import annotations

import re
from collections.abc import Collection
from enum import Enum, auto

from gateway.answers.json_call import JsonCall, JsonValue
from gateway.answers.part import CallArguments, CallStart, Content, Part
from gateway.answers.text_until import TextUntil, TrimmedText

CALLS, ARGUMENTS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_HEAD = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*")
_LONGEST_HEAD = 256


class _At(Enum):
    """A place in an answer."""

    TEXT = auto()
    MARKED = auto()
    LIST = auto()
    CALL = auto()
    HEAD = auto()
    ARGUMENTS = auto()


class MistralParser:
    """Reads text, and calls in either form after the mark."""

    def __init__(self, tools: Collection[str]) -> None:
        """tools: names of the tools that there are."""
        self._tools = tools
        self._calls = 0
        self._at = _At.TEXT
        self._text = TextUntil(CALLS)
        self._content = TrimmedText(start=True)
        self._raw = ""
        """Text since the mark, or since the last call, that is none of a call so far."""
        self._call = JsonCall(0, tools)
        self._value = JsonValue()

    def push(self, text: str) -> list[Part]:
        """Returns the parts that became final."""
        parts: list[Part] = []
        while text:
            if self._at is _At.TEXT:
                before, text = self._text.push(text)
                parts.append(Content(self._content.push(before)))
                if self._text.found is not None:
                    self._text = TextUntil(CALLS)
                    self._raw, self._at = CALLS, _At.MARKED
            elif self._at is _At.CALL:
                more, text = self._in_call(text)
                parts += more
            else:
                parts += self._take(text[0])
                text = text[1:]
        return parts

    def end(self) -> list[Part]:
        """Returns the rest; a call that did not come as far as its arguments is text."""
        text = self._text.rest()
        if self._at in (_At.MARKED, _At.HEAD):
            text = self._raw
        elif self._at is _At.CALL and not self._call.started:
            text = self._raw + self._call.text
        return [Content(self._content.push(text) + self._content.rest())]

    def _take(self, letter: str) -> list[Part]:
        if self._at is _At.ARGUMENTS:
            return self._in_arguments(letter)
        if self._at is _At.HEAD or (self._at is _At.MARKED and not letter.isspace() and letter != "["):
            self._at = _At.HEAD
            return self._in_head(letter)
        self._raw += letter
        if letter == "[":
            self._at = _At.LIST
        elif letter == "{":
            return self._begin_call(letter)
        elif letter == "]":
            self._raw, self._at = "", _At.TEXT
        elif not (letter.isspace() or letter == ","):
            return self._fail(self._raw)
        return []

    def _begin_call(self, letter: str) -> list[Part]:
        self._raw, self._at = self._raw[:-1], _At.CALL
        self._call = JsonCall(self._calls, self._tools)
        return self._in_call(letter)[0]

    def _in_call(self, text: str) -> tuple[list[Part], str]:
        parts, text = self._call.push(text)
        if self._call.started:
            self._content.drop()
            self._raw = ""
        if self._call.ended:
            self._at = _At.LIST
            self._calls += 1
        elif self._call.failed:
            parts = self._fail(self._raw + self._call.text)
        return parts, text

    def _in_head(self, letter: str) -> list[Part]:
        if letter != "{":
            self._raw += letter
            return self._fail(self._raw) if len(self._raw) > _LONGEST_HEAD else []
        head = _HEAD.fullmatch(self._raw.removeprefix(CALLS))
        if head is None or head[1] not in self._tools:
            return self._fail(self._raw + letter)
        self._content.drop()
        self._value, self._at = JsonValue(), _At.ARGUMENTS
        return [CallStart(self._calls, head[1]), *self._in_arguments(letter)]

    def _in_arguments(self, letter: str) -> list[Part]:
        self._value.takes(letter)
        index = self._calls
        if self._value.ended:
            self._calls += 1
            self._raw, self._at = "", _At.TEXT
        return [CallArguments(index, letter)]

    def _fail(self, text: str) -> list[Part]:
        self._raw, self._at = "", _At.TEXT
        return [Content(self._content.push(text))]
