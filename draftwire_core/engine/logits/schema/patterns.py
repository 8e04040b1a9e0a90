"""Patterns and formats of texts in a JSON schema."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable
from typing import Any

from draftwire_core.engine.logits.schema.lookahead import without_lookahead
from draftwire_core.engine.logits.schema.refusals import Refusals, Strictness

ENFORCED_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
"""Formats that the grammar library knows."""
_LEAP_DAYS = (
    r"^(?:.{5}(?:0[013-9]|1)|.{8}(?:[01]|2[0-8])|(?:..(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:[02468][048]|[13579][26])00)-)"
)
"""Dates without 29 February in years that do not have it, which the grammar library allows."""
_UNRESERVED = r"[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2}"
_REFERENCE = (
    rf"^(?:[A-Za-z0-9._~!$&'()*+,;=@/-]|%[0-9A-Fa-f]{{2}})*(?:\?(?:{_UNRESERVED}|[/?])*)?(?:#(?:{_UNRESERVED}|[/?])*)?$"
)
"""References without a scheme, which are those that a colon cannot spoil."""
_URI = rf"^[A-Za-z][A-Za-z0-9+.-]*:(?:{_UNRESERVED}|[/?])+(?:#(?:{_UNRESERVED}|[/?])*)?$"
_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"
_BASE64_URL = r"^(?:[A-Za-z0-9_-]{4})*(?:[A-Za-z0-9_-][AQgw]={2}|[A-Za-z0-9_-]{2}[AEIMQUYcgkosw048]=)?$"
_POINTER = r"(?:/(?:[^/~\x00-\x1f]|~[01])*)*"
FORMAT_PATTERNS = {
    "byte": _BASE64,
    "base64": _BASE64,
    "base64url": _BASE64_URL,
    "uri-reference": _REFERENCE,
    "iri-reference": _REFERENCE,
    "iri": _URI,
    "url": _URI,
    "json-pointer": rf"^{_POINTER}$",
    "relative-json-pointer": rf"^(?:0|[1-9][0-9]{{0,8}})(?:#|{_POINTER})$",
}
"""Formats by patterns, each of which allows texts of the format alone, if not all of them."""
SAYING_NOTHING = frozenset(
    [
        "password",
        "binary",
        "path",
        "file-path",
        "directory-path",
        "textarea",
        "markdown",
        "html",
        "color",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "int",
        "uint",
        "float",
        "double",
        "float32",
        "float64",
        "decimal",
        "number",
        "integer",
    ]
)
"""Formats that say how a value is shown or stored."""


Schema = dict[str, Any]
_QUOTE = reprlib.Repr()
_QUOTE.maxstring = 120
_CLASS = re.compile(r"\\.|\[(\^?)((?:\\.|[^\]\\])+)\]", re.DOTALL)
"""A class of characters, whose groups have its mark of negation and its members, or an escape outside of one."""
_MAY_BE_ESCAPED = re.compile(r'["-]|\\[\\pux]')
"""Members among which there may be a quotation mark or a backslash."""


class Patterns:
    """Says patterns and formats by patterns that the library enforces."""

    def __init__(self, accepts: Callable[[Schema], str], refusals: Refusals) -> None:
        """accepts: returns the library's error for a schema, or an empty text."""
        self._accepts = accepts
        self._refusals = refusals
        self._known: dict[str, tuple[list[str], str]] = {}
        """Patterns by what they were: those in their place, or the reason why there is none."""

    def of_format(self, schema: Schema, place: str) -> Schema:
        """Says formats by patterns, and drops those that say nothing."""
        name = schema.get("format")
        if not isinstance(name, str) or name in ENFORCED_FORMATS:
            return _with_patterns(schema, [_LEAP_DAYS]) if name in ("date", "date-time") else schema
        del schema["format"]
        if name in FORMAT_PATTERNS:
            return _with_patterns(schema, [FORMAT_PATTERNS[name]])
        if name not in SAYING_NOTHING and self._refusals.strictness is Strictness.STRICT:
            self._refusals.refuse(place, "format", f"{name[:64]!r} cannot be enforced")
        return schema

    def of_text(self, schema: Schema, place: str) -> Schema:
        """Says the pattern of a text by those that can be enforced."""
        pattern = schema.get("pattern")
        if not isinstance(pattern, str):
            return schema
        patterns, reason = self._said(pattern)
        if patterns != [pattern]:
            del schema["pattern"]
        if reason:
            self._refusals.refuse(place, "pattern", f"{_quoted(pattern)} cannot be enforced: {reason}")
        elif patterns != [pattern]:
            return _with_patterns(schema, patterns)
        return schema

    def of_names(self, schema: Schema, place: str) -> Schema:
        """Keeps the patterns of properties' names that can be enforced."""
        named = schema.get("patternProperties")
        if not isinstance(named, dict):
            return schema
        for pattern in list(named):
            patterns, reason = self._said(pattern)
            if len(patterns) == 1:
                named = {patterns[0] if each == pattern else each: value for each, value in named.items()}
                schema = schema | {"patternProperties": named}
                continue
            reason = reason or "look-around is not supported here"
            self._refusals.refuse(place, "patternProperties", f"{_quoted(pattern)} cannot be enforced: {reason}")
            named = {each: value for each, value in named.items() if each != pattern}
            schema = schema | {"patternProperties": named, "additionalProperties": True}
        return schema

    def _said(self, pattern: str) -> tuple[list[str], str]:
        """Returns patterns that together say the same, or the reason why there are none."""
        if pattern not in self._known:
            reason = self._accepts({"type": "string", "pattern": pattern})
            patterns = [pattern]
            if reason:
                patterns = without_lookahead(pattern) or []
                if not patterns or any(self._accepts({"type": "string", "pattern": each}) for each in patterns):
                    patterns = []
            self._known[pattern] = (list(map(_exact, patterns)), "" if patterns else _pattern_reason(reason))
        return self._known[pattern]


def _exact(pattern: str) -> str:
    """Returns a pattern whose negated classes of characters have no vertical tab. The library adds quotation marks and
    backslashes to a class of all control characters, with or without the line feed."""

    def without_tab(found: re.Match[str]) -> str:
        if not found[1] or not _MAY_BE_ESCAPED.search(found[2]):
            return found[0]
        dash = "\\" if found[2].startswith("-") else ""
        return f"[^\\x0b{dash}{found[2]}]"

    return _CLASS.sub(without_tab, pattern)


def _with_patterns(schema: Schema, patterns: list[str]) -> Schema:
    """Returns a schema with further patterns."""
    if "pattern" not in schema and len(patterns) == 1:
        return schema | {"pattern": patterns[0]}
    more = [{"pattern": each} for each in patterns]
    return schema | {"allOf": [*schema.get("allOf", []), *more]}


def _pattern_reason(reason: str) -> str:
    """Returns the library's reason without its drawing of the pattern."""
    found = re.search(r"error: (.*)", reason, re.DOTALL)
    return " ".join((found[1] if found else reason).split())[:200]


def _quoted(pattern: str) -> str:
    return _QUOTE.repr(pattern)
