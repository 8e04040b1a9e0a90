"""One of several texts that may come next, in pieces and whatever white space is in it; those that begin a call."""

from __future__ import annotations

import re
from collections.abc import Iterable

from draftwire import CallSpelling
from gateway_service.answers.text_until import WHITE_SPACE, end_of

MARKER = re.compile(r"<[^<>]+>|<[^<>]{2,}$|\[[A-Z_/]+\]")
"""A marker; at the end of a piece also the start of one."""
_OPENING = re.compile(r"<\w+=")
"""The start of a mark whose value is a call's name."""


class ExpectedText:
    """Follows a text as long as it may be one of those expected. If one begins another, the longer counts."""

    def __init__(self, texts: Iterable[str]) -> None:
        """texts: the texts that may come, none of them empty."""
        self._texts = sorted({without_space(text) for text in texts})
        self._raw: list[str] = []
        self._came = ""
        self.found: str | None = None
        """The text that came, without white space."""
        self.failed = False
        """Whether none came."""

    @property
    def raw(self) -> str:
        """The part that has come so far, white space included."""
        return "".join(self._raw)

    def push(self, text: str, at: int) -> int:
        """Returns the index in `text` of what follows."""
        begin = at
        while at < len(text) and self.found is None and not self.failed:
            at = end_of(WHITE_SPACE, text, at)
            if at == len(text):
                break
            came = self._came + text[at]
            if any(each.startswith(came) for each in self._texts):
                self._came = came
                at += 1
                if came in self._texts and not any(each != came and each.startswith(came) for each in self._texts):
                    self.found = came
            elif self._came in self._texts:
                self.found = self._came
            else:
                self.failed = True
        self._raw.append(text[begin:at])
        return at


def without_space(text: str) -> str:
    """Returns a text without its white space."""
    return "".join(text.split())


def split_begin(spelling: CallSpelling) -> tuple[str, str]:
    """Returns the marker that begins the first call, and what stands between it and the call's name or object."""
    whole = (spelling.begin + spelling.call_begin).lstrip()
    marker = MARKER.match(whole)
    found = whole if marker is None else marker[0].rstrip()
    return found, whole[len(found) :]


def bare_begin(spelling: CallSpelling) -> str:
    """Returns what begins a call whose first marker is left out, as by Qwen 3 Coder, which often writes no
    ``<tool_call>`` before ``<function=``; empty if a call does not show without it."""
    rest = split_begin(spelling)[1].strip()
    named = spelling.style in ("parameters", "json") and not spelling.begin.strip()
    return rest if named and _OPENING.fullmatch(rest) else ""


def begins(spelling: CallSpelling) -> list[str]:
    """Returns the marks with which the first call may begin."""
    return [each for each in (split_begin(spelling)[0], bare_begin(spelling)) if each]
