"""The forms that a request may require of its output, converted to the grammar library's notation."""

from __future__ import annotations

import enum
import json
import re
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from draftwire_core.engine.logits.grammar_depth import (
    MOST_LEVELS,
    gbnf_levels,
    lark_levels,
    schema_blocks,
    schema_levels,
)
from draftwire_core.engine.logits.schema.enforceable_schema import dropped, enforceable, named
from draftwire_core.engine.logits.schema.refusals import SchemaError, fault_of

_CODE_POINT = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
"""An escape of GBNF, whose groups have the digits of a code point."""
_LAST_CODE_POINT, _LAST_SHORT = 0x10FFFF, 0xFF
_ESCAPES = {"0": 0, "a": 7, "b": 8, "v": 11, "f": 12, "e": 27} | {mark: ord(mark) for mark in "'/?-^."}
"""Code points of escapes of xgrammar's EBNF that the library's converter does not know."""
_PIECE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|\[[^\]\\]*(?:\\.[^\]\\]*)*\]?|(#[^\n]*|\s+)|.', re.DOTALL)
"""A piece of GBNF: a text, a class of characters, a comment or white space (the group), or any other character."""
_ANY = f"[\\x00-{chr(_LAST_CODE_POINT)}]"
"""A dot of GBNF, which is a line feed, too; the library's is not."""
_MOST_LEFT_OUT = 64
"""Most left-out parts of a form that a response names."""
_SURROGATES = range(0xD800, 0xE000)


class FormKind(enum.Enum):
    """The notation of a form."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    EBNF = "ebnf"
    CHOICE = "choice"
    """One of several texts, given as a JSON list."""


class GrammarError(ValueError):
    """Raised for a form that is invalid or not supported; the message says why."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A form as the request specifies it."""

    kind: FormKind
    text: str

    def check_depth(self) -> None:
        """Raises GrammarError if the library would recurse too deeply to compile the form."""
        if self.kind is FormKind.JSON_SCHEMA:
            levels = schema_levels(self._schema())
        elif self.kind is FormKind.LARK:
            levels = self._lark_levels()
        elif self.kind is FormKind.EBNF:
            levels = gbnf_levels(self.text)
        else:
            return  # has no references, and the library itself bounds the groups of an expression
        if levels > MOST_LEVELS:
            raise GrammarError(
                f"has references and groups nested {levels} levels deep, at most {MOST_LEVELS} are allowed"
            )

    def _lark_levels(self) -> int:
        try:
            return lark_levels(self.text)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"contains JSON that cannot be read: {error}") from error

    def notation(self) -> str:
        """The form in the library's notation. Raises GrammarError for text that is not of its kind."""
        if self.kind is FormKind.JSON_SCHEMA:
            return self._json_schema()
        if self.kind is FormKind.REGEX:
            return LLMatcher.grammar_from_regex(_without_anchors(self.text))
        if self.kind is FormKind.LARK:
            return LLMatcher.grammar_from_lark(self._lark())
        if self.kind is FormKind.EBNF:
            return LLMatcher.grammar_from_lark(self._lark_of_ebnf())
        texts = [json.dumps(each, ensure_ascii=False) for each in json.loads(self.text)]
        return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(texts)}\n")

    def left_out(self) -> list[str]:
        """Places of what the form's lenient schemas have and no grammar enforces, at most 64 (see `dropped`). The form
        must be one that `notation` accepts."""
        found: dict[str, None] = {}
        for schema in self._schemas():
            found |= dict.fromkeys(dropped(schema, _fault))
        return list(found)[:_MOST_LEFT_OUT]

    def _schemas(self) -> list[dict[str, Any]]:
        """The schemas in the form."""
        if self.kind is FormKind.JSON_SCHEMA:
            return [self._schema()]
        if self.kind is FormKind.LARK:
            return [schema for _, _, schema in schema_blocks(self.text) if isinstance(schema, dict)]
        return []

    def _json_schema(self) -> str:
        return _notation_of(_enforceable(self._schema()))

    def _schema(self) -> dict[str, Any]:
        try:
            schema = json.loads(self.text)
        except RecursionError as error:
            raise GrammarError("is not JSON that can be read: it is nested too deeply") from error
        except ValueError as error:
            raise GrammarError(f"is not JSON: {error}") from error
        if not isinstance(schema, dict):
            raise GrammarError("is not a JSON object")
        return schema

    def _lark(self) -> str:
        """The text with its schemas rewritten."""
        parts: list[str] = []
        at = 0
        try:
            for begin, end, schema in schema_blocks(self.text):
                parts.append(self.text[at:begin])
                rewritten = _enforceable(schema) if isinstance(schema, dict) else schema
                parts.append(json.dumps(rewritten))
                at = end
        except (json.JSONDecodeError, RecursionError) as error:
            raise GrammarError(f"contains JSON that cannot be read: {error}") from error
        return "".join([*parts, self.text[at:]])

    def located(self, message: str) -> str:
        """The library's message about this form, with the place in the schema that it is about."""
        for schema in self._schemas():
            if not _fault(_enforceable(schema)):
                continue
            place, reason = fault_of(schema, _fault_of_part)
            return named(schema, f"{place}: {reason}" if place else message)
        return message

    def _lark_of_ebnf(self) -> str:
        try:
            return gbnf_to_lark(_CODE_POINT.sub(_spelled, _with_joined_lines(self.text)))
        except GrammarError:
            raise
        except Exception as error:  # the library raises no narrower type
            raise GrammarError(str(error) or "is nested too deeply") from error


def _with_joined_lines(text: str) -> str:
    """Returns a grammar in GBNF whose alternatives that begin on lines of their own, as xgrammar's EBNF allows, follow
    on the same line, and whose dots are classes of all characters."""
    pieces: list[str] = []
    between: list[str] = []
    for piece in _PIECE.finditer(text):
        if piece[1]:
            between.append(piece[1])
            continue
        pieces += [" "] if piece[0] == "|" else between
        pieces.append(_ANY if piece[0] == "." else piece[0])
        between.clear()
    return "".join([*pieces, *between])


def _spelled(escape: re.Match[str]) -> str:
    """Spells an escaped code point of GBNF as the library's converter keeps it: it drops leading zeros of others."""
    digits = escape[1] or escape[2]
    code = _ESCAPES.get(escape[0][1:]) if digits is None else int(digits, 16)
    if code is None:
        return escape[0]
    if code > _LAST_CODE_POINT or code in _SURROGATES:
        raise GrammarError(f"{escape[0]} is not a character")
    return f"\\x{code:02x}" if code <= _LAST_SHORT else chr(code)


def _enforceable(schema: dict[str, Any]) -> dict[str, Any]:
    try:
        return enforceable(schema, _fault)
    except SchemaError as error:
        # Names in a schema may have halves of surrogate pairs, which a response cannot have.
        raise GrammarError(str(error).encode(errors="backslashreplace").decode()) from error
    except RecursionError as error:
        raise GrammarError("is nested too deeply") from error


def _fault(schema: dict[str, Any]) -> str:
    """Returns the library's error for a schema, or an empty text."""
    return str(LLMatcher.validate_grammar(_notation_of(schema)))


def _fault_of_part(part: dict[str, Any]) -> str:
    """Returns the library's error for a part of a schema that can be rewritten by itself, or an empty text."""
    try:
        return _fault(_enforceable(part))
    except GrammarError:
        return ""


def _notation_of(schema: dict[str, Any]) -> str:
    """Returns a schema in the library's notation. White space is fixed, as Python writes it: models cannot loop in it,
    and more tokens are forced."""
    try:
        return LLMatcher.grammar_from_json_schema(
            json.dumps(schema), defaults={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        )
    except ValueError as error:
        raise GrammarError(str(error)) from error


def _without_anchors(regex: str) -> str:
    """Removes anchors, which the library does not support; it matches whole texts anyway."""
    start = 1 if regex.startswith("^") else 0
    slashes = len(regex[:-1]) - len(regex[:-1].rstrip("\\"))
    end = -1 if regex.endswith("$") and slashes % 2 == 0 else None
    return regex[start:end]
