"""Arguments between marks, each after its key, as ``<parameter=city>Rome</parameter>``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from draftwire import CallSpelling
from gateway_service.answers.spelled.argument_schema import properties, types_of
from gateway_service.answers.spelled.expected_text import MARKER, ExpectedText, begins, without_space
from gateway_service.answers.spelled.parameter_value import value_of
from gateway_service.answers.spelled.text_until_tags import TextUntilTags

_TEXT = frozenset({"string"})
_MOST_KEYS = 256
"""Most keys that are looked for in a value."""


class ParameterArguments:
    """Turns parameters into a JSON object as they come; strings are passed on letter by letter."""

    def __init__(self, spelling: CallSpelling, schema: Mapping[str, Any], *, enforced: bool = False) -> None:
        """schema: JSON schema of the arguments, which says what is a string. enforced: whether a grammar holds, so that
        each value has its end."""
        self._spelling = spelling
        self._schema = schema
        self._known = properties(schema, schema)
        end = spelling.call_end
        marks = [match.start() for match in MARKER.finditer(end)]
        self._ends = {without_space(end), *(without_space(end[at:]) for at in marks)} - {""}
        """Text that ends the call. Models leave out inner marks."""
        first = MARKER.search(end)
        self._first_end = "" if first is None else first[0]
        """The first mark of that text, behind which models leave out the others."""
        others = "" if first is None else without_space(end[first.end() :])
        self._closers = [others + each[:-1] for each in begins(spelling)]
        """Text behind that mark with which a call ends whose last value has no end: the other marks, and the next
        call's, up to the last letter."""
        key_begin = spelling.key_begin.strip()
        whole = key_begin == without_space(key_begin) and len(self._known) <= _MOST_KEYS
        self._stops = () if enforced else (self._first_end, key_begin if whole else "")
        """Marks with which a value may end that has no end: the call's end, and what begins a known key."""
        self._given: set[str] = set()
        """Keys so far."""
        self._closing: ExpectedText | None = None
        """Behind one of these two marks in a value; None elsewhere."""
        self._next: ExpectedText | None = ExpectedText(self._after(spelling.name_end))
        """Before a key, or the call's end; None elsewhere."""
        self._key: TextUntilTags | None = None
        self._value: TextUntilTags | None = None
        self._raw: list[str] = []
        """The key or the value being read, unless it is passed on."""
        self._types: frozenset[str] | None = None
        """Types that the value may have; None if that is not known."""
        self._starts = False
        """Whether the value has no text so far."""
        self._line = ""
        """A line's end that may be the last letter of a value's text or belong to the frame around it."""
        self._count = 0
        self._left = ""
        self.ended = self.failed = False

    def push(self, text: str, at: int) -> tuple[str, int]:
        """Returns the JSON text that became final, and the index in `text` of what follows."""
        out: list[str] = []
        while at < len(text) and not (self.ended or self.failed):
            if self._next is not None:
                at = self._in_next(self._next, text, at, out)
            elif self._key is not None:
                at = self._in_key(self._key, text, at, out)
            elif self._closing is not None:
                at = self._in_closing(self._closing, text, at, out)
            elif self._value is not None:
                at = self._in_value(self._value, text, at, out)
        return "".join(out), at

    def left(self) -> str:
        """Returns the text behind the arguments that was read, and is none of theirs."""
        return self._left

    def end(self) -> str:
        """Returns the rest of the JSON text, at the end of an answer that leaves out no more than marks."""
        if self._closing is not None and self._value is not None and self._value.stopped == self._first_end:
            return self._ended_value() + self._brace
        return "" if self._next is None or self.ended else self._brace

    @property
    def _brace(self) -> str:
        return "}" if self._count else "{}"

    def _after(self, before: str) -> list[str]:
        return [before + each for each in (self._spelling.key_begin, *self._ends)]

    def _in_next(self, expected: ExpectedText, text: str, at: int, out: list[str]) -> int:
        at = expected.push(text, at)
        closed = bool(self._first_end) and self._first_end in expected.raw
        if expected.found is not None and expected.found.endswith(without_space(self._spelling.key_begin)):
            self._next, self._key = None, TextUntilTags(self._spelling.key_end)
            self._raw = []
            if not self._count:
                out.append("{")
        elif expected.found is not None or (expected.failed and (self._count or closed)):
            behind = expected.raw.partition(self._first_end)[2] if closed else expected.raw
            self._left = "" if expected.found else behind
            self.ended = True
            out.append(self._brace)
        else:
            self.failed = expected.failed
        return at

    def _in_key(self, key: TextUntilTags, text: str, at: int, out: list[str]) -> int:
        found, at = key.push(text, at)
        self._raw.append(found)
        if key.ended:
            self._begin_value("".join(self._raw).strip(), out)
        return at

    def _begin_value(self, name: str, out: list[str]) -> None:
        out.append(", " * bool(self._count) + json.dumps(name, ensure_ascii=False) + ": ")
        self._given.add(name)
        self._types = types_of(self._known.get(name), self._schema)
        self._key, self._value = None, TextUntilTags(self._spelling.value_end, *self._stops)
        self._raw, self._starts, self._line = [], True, ""
        if self._is_text:
            out.append('"')

    def _in_value(self, value: TextUntilTags, text: str, at: int, out: list[str]) -> int:
        found, at = value.push(text, at)
        self._pass_on(found, out)
        if value.ended:
            out.append(self._ended_value())
            self._next = ExpectedText(self._after(""))
        elif value.stopped:
            self._closing = ExpectedText(self._closers if value.stopped == self._first_end else self._keys)
        return at

    @property
    def _keys(self) -> dict[str, str]:
        """The known keys that have not come, by their spelling behind the mark before a key."""
        end = self._spelling.key_end
        return {without_space(key + end): key for key in self._known if key not in self._given}

    def _in_closing(self, expected: ExpectedText, text: str, at: int, out: list[str]) -> int:
        """Reads what stands behind the call's end or a key's beginning in a value: models leave out the value's end
        before it."""
        at = expected.push(text, at)
        value = self._value
        assert value is not None
        if expected.found is not None and value.stopped == self._first_end:
            out.append(self._ended_value() + self._brace)
            self._left = expected.raw[expected.raw.rfind("<") :]
            self.ended = True
        elif expected.found is not None:
            key = self._keys[expected.found]
            out.append(self._ended_value())
            self._begin_value(key, out)
        elif expected.failed:
            self._closing = None
            self._pass_on(value.stopped, out)
            value.go_on(expected.raw)
        return at

    def _pass_on(self, text: str, out: list[str]) -> None:
        """Takes a part of the value."""
        text = self._framed(text, ended=False)
        if self._is_text:
            out.append(json.dumps(text, ensure_ascii=False)[1:-1])
        else:
            self._raw.append(text)

    def _ended_value(self) -> str:
        """Returns the rest of the value, which has ended."""
        self._framed("", ended=True)
        self._count += 1
        self._value = self._closing = None
        return '"' if self._is_text else value_of("".join(self._raw), self._types)

    @property
    def _is_text(self) -> bool:
        return self._types == _TEXT

    def _framed(self, text: str, *, ended: bool) -> str:
        """Returns a part of a value without the line's ends that the template puts around it."""
        if self._starts and text:
            self._starts = False
            if self._spelling.key_end.endswith("\n"):
                text = text.removeprefix("\n")
        if not self._spelling.value_end.startswith("\n"):
            return text
        text, self._line = self._line + text, ""
        if text.endswith("\n"):
            self._line = "" if ended else "\n"
            return text[:-1]
        return text
