"""A call of a tool as a JSON object, read in pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from enum import Enum, auto

from gateway_service.answers.part import CallArguments, CallStart, Part
from gateway_service.answers.text_until import end_of

_SPACE = " \t\r\n"
_OPENING, _CLOSING, _BEHIND = "{[", "}]", "," + _SPACE
_SPACES = re.compile(f"[{_SPACE}]*")
_IN_STRING = re.compile(r'[^"\\]*')
_NESTED = re.compile(r'[^"{}\[\]]*')
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

    def take(self, text: str, at: int) -> int:
        """Returns the index behind the part of `text` that belongs to the value, of which the next letter is that at
        `at`; `ended` says whether the value ends there."""
        while at < len(text) and not self.ended:
            if self._in_string:
                at = self._take_string(text, at)
            elif self._depth:
                at = self._take_nested(text, at)
            elif text[at] in _CLOSING or text[at] in _BEHIND:
                self.ended = True
            else:
                self._begin(text[at])
                at += 1
        return at

    def _begin(self, letter: str) -> None:
        if letter in _OPENING:
            self._depth = 1
        elif letter == '"' and not self._scalar:
            self._in_string = True
        else:
            self._scalar = True

    def _take_string(self, text: str, at: int) -> int:
        if self._escaped:
            self._escaped = False
            return at + 1
        at = end_of(_IN_STRING, text, at)
        if at == len(text):
            return at
        if text[at] == "\\":
            self._escaped = True
        else:
            self._in_string = False
            self.ended = self._depth == 0
        return at + 1

    def _take_nested(self, text: str, at: int) -> int:
        at = end_of(_NESTED, text, at)
        if at == len(text):
            return at
        if text[at] == '"':
            self._in_string = not self._scalar
        else:
            self._depth += 1 if text[at] in _OPENING else -1
            self.ended = self._depth == 0
        return at + 1


class JsonCall:
    """Reads ``{"name": ..., "arguments": {...}}``, the keys in any order. The arguments stay as they are written.

    An object that turns out to be something else, or to call an unknown tool, before its arguments began to be passed
    on, fails; its text is then `text`.
    """

    def __init__(
        self, index: int, tools: Collection[str], name_key: str = "name", arguments_keys: Collection[str] = _ARGUMENTS
    ) -> None:
        """index: number of the call in its answer. tools: names of the tools that there are. name_key, arguments_keys:
        keys of the object."""
        self._index = index
        self._name_key = name_key
        self._arguments_keys = arguments_keys
        self._tools = tools
        self._at = _At.START
        self._pieces: list[str] = []
        """Text of the object so far."""
        self.started = False
        """Whether the start of the call was passed on."""
        self._key = ""
        self._value = JsonValue()
        self._raw: list[str] = []
        """Text of the key or the value being read, unless it is passed on."""
        self._streams = False
        """Whether the value being read is an object of arguments, which is passed on as it comes."""
        self._name: str | None = None
        self._arguments: list[str] = []
        """Arguments that cannot be passed on yet, since the name is not known or they are a string."""

    @property
    def ended(self) -> bool:
        """Whether the object is complete, and a call."""
        return self._at is _At.END

    @property
    def failed(self) -> bool:
        """Whether the object is no call."""
        return self._at is _At.FAILED

    @property
    def text(self) -> str:
        """Text of the object so far."""
        return "".join(self._pieces)

    def push(self, text: str, at: int = 0) -> tuple[list[Part], int]:
        """Returns the parts that became final, and the index in `text` of what follows the object.

        at: index from which it counts.
        """
        parts: list[Part] = []
        begin = at
        while at < len(text) and self._at not in (_At.END, _At.FAILED):
            at = self._take(text, at, parts)
        self._pieces.append(text[begin:at])
        return parts, at

    @property
    def named(self) -> bool:
        """Whether the name of the tool is known."""
        return self._name is not None

    @property
    def likely(self) -> bool:
        """Whether the text of an object without a name is the start of a call: ``{"name": "`` and a tool's name, or as
        much of that as has come."""
        head = "".join(self.text.split())
        return any(f'{{"{self._name_key}":"{tool}"'.startswith(head) for tool in self._tools)

    def end(self) -> list[Part]:
        """Returns the start of a call that was cut off before its arguments, if its name is known."""
        if self.started or self.failed or self._name is None:
            return []
        return [CallStart(self._index, self._name)]

    def _take(self, text: str, at: int, parts: list[Part]) -> int:
        letter = text[at]
        match self._at:
            case _At.IN_VALUE:
                return self._in_value(text, at, parts)
            case _At.VALUE if letter not in _SPACE:
                self._value, self._raw, self._at = JsonValue(), [], _At.IN_VALUE
                self._streams = letter == "{" and self._key in self._arguments_keys
                return at
            case _At.KEY if self._raw or letter == '"':
                return self._in_key(text, at)
            case _ if letter in _SPACE:
                return end_of(_SPACES, text, at)
            case _At.START if letter == "{":
                self._at = _At.KEY
            case _At.START:
                self._at = _At.FAILED
                return at
            case _At.COLON if letter == ":":
                self._at = _At.VALUE
            case _At.NEXT if letter == ",":
                self._at = _At.KEY
            case _At.NEXT | _At.KEY if letter == "}":
                parts += self._close()
            case _:
                self._at = _At.END if self.started else _At.FAILED
        return at + 1

    def _in_key(self, text: str, at: int) -> int:
        if not self._raw:
            self._value = JsonValue()
        end = self._value.take(text, at)
        self._raw.append(text[at:end])
        if self._value.ended:
            self._key, self._raw, self._at = "".join(self._raw)[1:-1], [], _At.COLON
        return end

    def _in_value(self, text: str, at: int, parts: list[Part]) -> int:
        end = self._value.take(text, at)
        if self._streams:
            self._arguments.append(text[at:end])
            parts += self._pass_on()
        else:
            self._raw.append(text[at:end])
        if self._value.ended:
            parts += self._end_value()
        return end

    def _end_value(self) -> list[Part]:
        self._at = _At.NEXT
        raw, self._raw = "".join(self._raw), []
        if self._key == self._name_key:
            name = _text(raw)
            if name not in self._tools or self._name is not None:
                self._at = _At.END if self.started else _At.FAILED
                return []
            self._name = name
        elif self._key in self._arguments_keys and not self._streams:
            self._arguments = [_text(raw) or ("{}" if raw == "null" else raw)]
        return self._pass_on() if self._arguments else []

    def _pass_on(self) -> list[Part]:
        """Passes on the arguments so far, if the name is known."""
        if self._name is None:
            return []
        parts: list[Part] = [] if self.started else [CallStart(self._index, self._name)]
        self.started = True
        arguments, self._arguments = "".join(self._arguments), []
        return [*parts, CallArguments(self._index, arguments)]

    def _close(self) -> list[Part]:
        if self._name is None:
            self._at = _At.FAILED
            return []
        self._at = _At.END
        if self.started:
            return []
        self._arguments = ["{}"]
        return self._pass_on()


def _text(raw: str) -> str | None:
    """Returns a JSON string's text; None for another value."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None
