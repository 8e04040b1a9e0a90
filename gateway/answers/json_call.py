"""A call of a tool as a JSON object, read in pieces."""

from __future__ import annotations

import json
from collections.abc import Collection
from enum import Enum, auto

from gateway.answers.part import CallArguments, CallStart, Part

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")


class _At(Enum):
    """A place in the object."""

    START = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    NEXT = auto()
    END = auto()
    FAILED = auto()


class JsonValue:
    """Finds the end of a JSON value. It follows strings and brackets only, so that it accepts faulty values as well."""

    def __init__(self) -> None:
        """Starts before the value."""
        self._depth = 0
        self._in_string = self._escaped = self._scalar = False
        self.ended = False

    def takes(self, letter: str) -> bool:
        """Whether the letter belongs to the value; `ended` tells whether it is the last one."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif letter == "\\":
                self._escaped = True
            elif letter == '"':
                self._in_string = False
                self.ended = self._depth == 0
        elif letter == '"' and not self._scalar:
            self._in_string = True
        elif letter in "{[":
            self._depth += 1
        elif letter in "}]":
            if not self._depth:
                self.ended = True
                return False
            self._depth -= 1
            self.ended = self._depth == 0
        elif not self._depth:
            if letter in "," + _SPACE:
                self.ended = True
                return False
            self._scalar = True
        return True


class JsonCall:
    """Reads ``{"name": ..., "arguments": {...}}``, the keys in any order. The arguments stay as they are written.

    An object that turns out to be something else, or to call an unknown tool, before its arguments began to be passed
    on, fails; its text is then `text`.
    """

    def __init__(self, index: int, tools: Collection[str]) -> None:
        """index: number of the call in its answer. tools: names of the tools that there are."""
        self._index = index
        self._tools = tools
        self._at = _At.START
        self.text = ""
        """Text of the object so far."""
        self.started = False
        """Whether the start of the call was passed on."""
        self._key = ""
        self._value = JsonValue()
        self._raw = ""
        """Text of the key or the value being read."""
        self._name: str | None = None
        self._arguments = ""
        """Arguments that cannot be passed on yet, since the name is not known or they are a string."""

    @property
    def ended(self) -> bool:
        """Whether the object is complete, and a call."""
        return self._at is _At.END

    @property
    def failed(self) -> bool:
        """Whether the object is no call."""
        return self._at is _At.FAILED

    def push(self, text: str) -> tuple[list[Part], str]:
        """Returns the parts that became final, and what follows the object."""
        parts: list[Part] = []
        for place, letter in enumerate(text):
            if self._at in (_At.END, _At.FAILED):
                return parts, text[place:]
            self.text += letter
            parts += self._take(letter)
        return parts, ""

    def _take(self, letter: str) -> list[Part]:
        match self._at:
            case _At.IN_VALUE:
                return self._in_value(letter)
            case _At.VALUE if letter not in _SPACE:
                self._value, self._raw, self._at = JsonValue(), "", _At.IN_VALUE
                return self._in_value(letter)
            case _At.KEY if self._raw or letter == '"':
                self._in_key(letter)
            case _ if letter in _SPACE:
                pass
            case _At.START if letter == "{":
                self._at = _At.KEY
            case _At.COLON if letter == ":":
                self._at = _At.VALUE
            case _At.NEXT if letter == ",":
                self._at = _At.KEY
            case _At.NEXT | _At.KEY if letter == "}":
                return self._close()
            case _:
                self._at = _At.END if self.started else _At.FAILED
        return []

    def _in_key(self, letter: str) -> None:
        if not self._raw:
            self._value = JsonValue()
        self._raw += letter
        self._value.takes(letter)
        if self._value.ended:
            self._key, self._raw, self._at = self._raw[1:-1], "", _At.COLON

    def _in_value(self, letter: str) -> list[Part]:
        if not self._value.takes(letter):
            ended = self._end_value()
            return ended if self._at is _At.FAILED else [*ended, *self._take(letter)]
        self._raw += letter
        parts: list[Part] = []
        if self._key in _ARGUMENTS and self._raw[0] == "{":
            self._arguments += letter
            parts += self._pass_on()
        return [*parts, *self._end_value()] if self._value.ended else parts

    def _end_value(self) -> list[Part]:
        self._at = _At.NEXT
        raw, self._raw = self._raw, ""
        if self._key == "name":
            name = _text(raw)
            if name not in self._tools or self._name is not None:
                self._at = _At.END if self.started else _At.FAILED
                return []
            self._name = name
        elif self._key in _ARGUMENTS and not raw.startswith("{"):
            self._arguments = _text(raw) or ("{}" if raw == "null" else raw)
        return self._pass_on() if self._arguments else []

    def _pass_on(self) -> list[Part]:
        """Passes on the arguments so far, if the name is known."""
        if self._name is None:
            return []
        parts: list[Part] = [] if self.started else [CallStart(self._index, self._name)]
        self.started = True
        arguments, self._arguments = self._arguments, ""
        return [*parts, CallArguments(self._index, arguments)]

    def _close(self) -> list[Part]:
        if self._name is None:
            self._at = _At.FAILED
            return []
        self._at = _At.END
        if self.started:
            return []
        self._arguments = "{}"
        return self._pass_on()


def _text(raw: str) -> str | None:
    """Returns a JSON string's text; None for another value."""
    try:
        value = json.loads(raw)
    except ValueError:
        return None
    return value if isinstance(value, str) else None
