"""The number of values in a JSON text, which is bounded before the text is parsed."""

from __future__ import annotations

import re

_SHARE = 8
"""One in this many values may be an array or an object: as Python objects these take the most memory and time."""
_SLICE = 64 * 1024
"""Bytes that one call of the regular expression reads, so that other threads do not wait for it."""
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""The rest of a string, up to its closing quote or to a backslash whose character is not in the slice."""


class TooManyElements(ValueError):
    """A JSON text has more values than are allowed."""


def check_elements(text: bytes, most: int) -> None:
    """Checks the number of values in a JSON text; it need not be valid.

    The time is linear in the text's length. Strings are skipped, so a text with many commas is as good as any other.

    Args:
        text: the JSON text, in UTF-8.
        most: most values of its arrays and objects together; an eighth of them may be arrays and objects.

    Raises:
        TooManyElements: there are more; the message says how many are allowed.
    """
    if text.count(b",") + text.count(b"[") + text.count(b"{") <= most // _SHARE:
        return
    values = containers = strings = at = 0
    while True:
        quote = text.find(b'"', at)
        end = len(text) if quote < 0 else quote
        opened = text.count(b"[", at, end) + text.count(b"{", at, end)
        containers += opened
        values += opened + text.count(b",", at, end)
        strings += 1
        if containers > most // _SHARE:
            raise TooManyElements(f"has more than {most // _SHARE} arrays and objects")
        if values > most or strings > 2 * most + 2:  # a member of an object has two strings
            raise TooManyElements(f"has more than {most} values")
        if quote < 0:
            return
        at = _end_of_string(text, quote + 1)


def _end_of_string(text: bytes, at: int) -> int:
    """Returns the place after a string's closing quote. at: the place after the opening one."""
    while at < len(text):
        match = _TEXT.match(text, at, at + _SLICE)
        assert match is not None  # the expression matches the empty text
        if match.end() == at and text[at : at + 1] != b'"':
            return len(text)  # ends with a lone backslash
        at = match.end()
        if text[at : at + 1] == b'"':
            return at + 1
    return at
