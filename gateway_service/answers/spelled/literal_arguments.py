"""Arguments written as literals: ``(city='Rome', days=3)`` as in Python, or ``{city:<|"|>Rome<|"|>,days:3}``."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from enum import Enum, auto
from math import isfinite

from gateway_service.answers.text_until import WHITE_SPACE, TextUntil, end_of

_OPENING = {"(": "]", "[": "]", "{": "}"}
_CLOSING, _MARKS = ")]}", "'\""
_WORD = re.compile(r"[^\s,:=(){}\[\]'\"]*")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_ESCAPES |= {letter: letter for letter in "\\'\"/"}
_HEX = {"x": 2, "u": 4, "U": 8}
_HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
_LETTERS = {mark: re.compile(rf"[^{mark}\\]*") for mark in _MARKS}
_LAST_CHARACTER = 0x10FFFF


class _At(Enum):
    """A place in an object or a list."""

    OPENING = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    NEXT = auto()


class LiteralArguments:
    """Turns literals into JSON as they come.

    A quotation mark ends a string only if a delimiter follows: models leave apostrophes without a backslash. Words that
    are no values are strings, so whatever comes is JSON as far as it goes.
    """

    def __init__(self, opening: str, quote: str) -> None:
        """opening: what they begin with. quote: what strings are put between, without escapes; or none."""
        self._opening = opening
        self._quote = quote
        self._at = _At.OPENING
        self._frames: list[str] = []
        """Text that closes the open objects and lists in JSON; empty if the keys belong to the object around it."""
        self._comma = False
        """Whether the next item comes after another."""
        self._left_out = 0
        """Brackets that are open in what is left out."""
        self._held = ""
        """The start of a quote."""
        self._word: list[str] | None = None
        self._raw: TextUntil | None = None
        """The string being read, between quotes."""
        self._mark = ""
        """The quotation mark of the string being read."""
        self._escape: str | None = None
        """The part of an escape that has come, behind the backslash."""
        self._space: list[str] | None = None
        """The text behind a quotation mark: it and white space; None elsewhere."""
        self._out: list[str] = []
        self.ended = self.failed = False

    def push(self, text: str, at: int) -> tuple[str, int]:
        """Returns the JSON text that became final, and the index in `text` of what follows."""
        before = 0
        if self._held:
            before, text, at = len(self._held) - at, self._held + text[at:], 0
            self._held = ""
        while at < len(text) and not (self.ended or self.failed):
            if self._raw is not None:
                at = self._in_raw(self._raw, text, at)
            elif self._space is not None:
                at = self._behind_mark(self._space, text, at)
            elif self._escape is not None:
                at += self._in_escape(self._escape + text[at])
            elif self._mark:
                at = self._in_string(text, at)
            elif self._word is not None:
                at = self._in_word(self._word, text, at)
            else:
                at = self._between(text, at)
        out, self._out = "".join(self._out), []
        return out, at - before

    def left(self) -> str:
        """Returns nothing: the end of the arguments shows by itself."""
        return ""

    def end(self) -> str:
        """Returns nothing: a literal that has not ended lacks a part."""
        return ""

    def _between(self, text: str, at: int) -> int:
        at = end_of(WHITE_SPACE, text, at)
        if at == len(text):
            return at
        letter = text[at]
        if self._at is _At.OPENING:
            self.failed = letter != self._opening
            if self.failed:
                return at
            self._open("}")
        elif self._quote and self._quote.startswith(text[at : at + len(self._quote)]):
            if len(text) - at < len(self._quote):
                self._held = text[at:]
                return len(text)
            self._raw = TextUntil(self._quote)
            self._begin_item('"')
            return at + len(self._quote)
        elif letter in _MARKS:
            self._mark = letter
            self._begin_item('"')
        elif letter in _OPENING:
            if self._written and self._at is _At.VALUE:
                self._open(_OPENING[letter])
            elif self._written and letter == "{":
                self._frames.append("")
            else:
                self._left_out += 1
        elif letter in _CLOSING:
            if self._left_out:
                self._left_out -= 1
            else:
                self._close()
        elif letter == "," and not self._left_out:
            self._next_item()
        elif letter in ",:=":
            if self._at is _At.COLON and not self._left_out:
                self._at = _At.VALUE
                self._out.append(": ")
        else:
            self._word = []
            return at
        return at + 1

    def _open(self, closing: str) -> None:
        self._begin_item("{" if closing == "}" else "[")
        self._frames.append(closing)
        self._at = _At.KEY if closing == "}" else _At.VALUE

    def _close(self) -> None:
        self._end_item()
        closing = self._frames.pop()
        self._out.append(closing)
        if closing or self._at is not _At.KEY:
            self._at, self._comma = _At.NEXT, False
        self.ended = not self._frames

    def _next_item(self) -> None:
        """Goes beyond a comma; one that no item precedes is left out."""
        in_object = self._frames[-1] != "]"
        self._comma |= self._at in (_At.COLON, _At.NEXT) or (in_object and self._at is _At.VALUE)
        self._end_item()
        self._at = _At.KEY if in_object else _At.VALUE

    @property
    def _written(self) -> bool:
        """Whether what comes is written, as a key or a value. What stands where neither can is left out."""
        return not self._left_out and self._at not in (_At.COLON, _At.NEXT)

    def _begin_item(self, text: str) -> None:
        """Begins a key or a value."""
        if not self._written:
            return
        if self._comma:
            self._out.append(", ")
            self._comma = False
        self._out.append(text)

    def _end_item(self) -> None:
        """Completes a key without a value."""
        if self._at is _At.COLON:
            self._out.append(": null")
        elif self._at is _At.VALUE and self._frames[-1] != "]":
            self._out.append("null")

    def _ended_item(self) -> None:
        if self._written:
            self._at = _At.COLON if self._at is _At.KEY else _At.NEXT

    def _write(self, text: str) -> None:
        """Writes a part of a string."""
        if self._written:
            self._out.append(json.dumps(text, ensure_ascii=False)[1:-1])

    def _end_string(self) -> None:
        if self._written:
            self._out.append('"')
        self._ended_item()

    def _in_raw(self, raw: TextUntil, text: str, at: int) -> int:
        found, at = raw.push(text, at)
        self._write(found)
        if raw.found is not None:
            self._raw = None
            self._end_string()
        return at

    def _in_string(self, text: str, at: int) -> int:
        end = end_of(_LETTERS[self._mark], text, at)
        self._write(text[at:end])
        if end == len(text):
            return end
        if text[end] == "\\":
            self._escape = ""
        else:
            self._space = [text[end]]
        return end + 1

    def _behind_mark(self, space: list[str], text: str, at: int) -> int:
        end = end_of(WHITE_SPACE, text, at)
        space.append(text[at:end])
        if end == len(text):
            return end
        self._space = None
        if text[end] in _CLOSING or text[end] in ",:=":
            self._mark = ""
            self._end_string()
        else:
            self._write("".join(space))
        return end

    def _in_escape(self, came: str) -> int:
        """Returns how many letters of the one that came last are read. came: the escape so far."""
        kind, digits = came[0], came[1:]
        if kind not in _HEX:
            self._write(_ESCAPES.get(kind, "\\" + kind))
        elif digits and digits[-1] not in _HEX_DIGITS:
            self._escape = None
            self._write("\\" + came[:-1])
            return 0
        elif len(digits) < _HEX[kind]:
            self._escape = came
            return 1
        elif self._written:
            number = int(digits, 16)
            whole = kind != "U" or number > _LAST_CHARACTER  # half a pair of \u stays an escape
            self._out.append(f"\\u{number & 0xFFFF:04x}" if whole else json.dumps(chr(number))[1:-1])
        self._escape = None
        return 1

    def _in_word(self, word: list[str], text: str, at: int) -> int:
        end = end_of(_WORD, text, at)
        if self._quote and (mark := text.find(self._quote[0], max(at, 0) + (not word), end)) >= 0:
            end = mark
        word.append(text[at:end])
        if end == len(text):
            return end
        self._word = None
        whole = "".join(word)
        if self._at is _At.KEY and whole == "**":  # the keys of the object behind it follow
            return end
        self._begin_item(json.dumps(whole) if self._at is _At.KEY else _constant(whole))
        self._ended_item()
        return end


def _constant(word: str) -> str:
    """Returns a value in JSON: a constant, a number, or else a string."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _NUMBER.fullmatch(word):
        return word
    with suppress(ValueError):
        return str(int(word))
    with suppress(ValueError):
        if isfinite(number := float(word)):
            return repr(number)
    return json.dumps(word, ensure_ascii=False)
