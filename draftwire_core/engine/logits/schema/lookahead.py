"""Patterns whose leading look-aheads can be said by further patterns, as those of zod's e-mail addresses and of
pydantic's decimals."""

from __future__ import annotations

import re
from collections.abc import Iterator

_AHEAD = re.compile(r"\(\?([=!])")
_ATOM = r"(?:\\[.\-+*?^$()\[\]{}|/\\@_]|[^\\.+*?^$()\[\]{}|])"
_CLASS = r"(?:\[(?:[^\]\\^]|\\.)(?:[^\]\\]|\\.)*\])"
_FIRST = re.compile(rf"({_ATOM}|{_CLASS})")
_TWICE = re.compile(rf"\.\*({_ATOM})\1")
_ALL = re.compile(rf"\^?({_ATOM}|{_CLASS}|\\[dswDSW])([*+])\$")
_DECIMALS = re.compile(r"(.*\(\?:\\d\{0,\d+\}\|)\(\?=\[\\d\.\]\{1,\d+\}0\*\$\)([^$|()]*)\$\)")
"""The digits of a decimal of pydantic with a limit of their number, which its first alternative, with no end, drops."""
_DURATION = r"^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$"
"""Durations of zod, whose look-aheads demand that something is said at all, and behind T."""
_SAID = r"\d[WYMDHS]$"
_ANYWHERE = r"[\s\S]"


def without_lookahead(pattern: str) -> list[str] | None:
    """Returns patterns that a text matches together if and only if it matches the given one; None if there are none.

    Understood are look-aheads directly after ``^``: any positive one, and negative ones of a first character, of
    the same character twice in succession, or of a text of the same characters alone. The dot counts as any character
    there, since a JSON text on one line is meant. Of pydantic's decimals only plain numbers are left.
    """
    if pattern == _DURATION:
        return [re.sub(r"\(\?[=!][^)]*\)", "", pattern), _SAID]
    if not pattern.startswith("^"):
        return None
    rest, more = pattern[1:], []
    while (found := _AHEAD.match(rest)) is not None:
        end = _closing(rest)
        if end is None:
            return None
        inner, rest = rest[found.end() : end], rest[end + 1 :]
        said = f"^(?:{inner})" if found[1] == "=" else _without(inner)
        if said is None or _AHEAD.search(inner):
            return None
        more.append(said)
    if more and (decimals := _DECIMALS.fullmatch(rest)) is not None:
        rest = f"{decimals[1]}{decimals[2]})$"
    if not more or "(?" in rest.replace("(?:", ""):
        return None
    if "|" in rest and _splits(rest):  # the look-aheads are of the first alternative alone
        return None
    return [f"^{rest}", *more]


def _without(inner: str) -> str | None:
    """Returns a pattern of the texts that do not begin as a negative look-ahead says."""
    first = _FIRST.fullmatch(inner)
    if first is not None:
        member = inner[1:-1] if inner.startswith("[") else _member(inner)
        return f"^(?:[^{member}]{_ANYWHERE}*)?$"
    alone = _ALL.fullmatch(inner)
    if alone is not None:
        member = alone[1][1:-1] if alone[1].startswith("[") else _member(alone[1])
        other = f"{_ANYWHERE}*[^{member}]"
        return f"^{other}" if alone[2] == "*" else f"^(?:{other}{_ANYWHERE}*)?$"
    twice = _TWICE.fullmatch(inner)
    if twice is not None:
        member = _member(twice[1])
        return f"^(?:[^{member}]|[{member}][^{member}])*[{member}]?$"
    return None


def _member(atom: str) -> str:
    """Returns a character as a member of a class."""
    bare = atom.removeprefix("\\") if len(atom) > 1 else atom
    return atom if bare.isalpha() else re.escape(bare)


def _closing(text: str) -> int | None:
    """Returns the index of the parenthesis that closes the one with which a pattern begins."""
    return next((at for at, letter, depth in _outside_classes(text) if letter == ")" and not depth), None)


def _splits(text: str) -> bool:
    """Whether a pattern has alternatives outside of groups."""
    return any(letter == "|" and not depth for _, letter, depth in _outside_classes(text))


def _outside_classes(text: str) -> Iterator[tuple[int, str, int]]:
    """Yields the letters that are neither escaped nor in a class: index, letter, and the depth of groups after it."""
    depth, at, in_class = 0, 0, False
    while at < len(text):
        letter = text[at]
        if letter == "\\":
            at += 1
        elif in_class:
            in_class = letter != "]"
        elif letter == "[":
            in_class = True
        else:
            depth += (letter == "(") - (letter == ")")
            yield at, letter, depth
        at += 1
