"""Text up to a mark of several tags, with whatever white space between them."""

from __future__ import annotations

import re

from gateway_service.answers.spelled.expected_text import ExpectedText, without_space
from gateway_service.answers.text_until import TextUntil

_BETWEEN = re.compile(r"(?<=[>\]])\s*(?=[<\[])")


class TextUntilTags:
    """Passes a text on until a mark comes, in pieces. Models leave out line ends between tags, or write others."""

    def __init__(self, mark: str) -> None:
        """mark: the mark as the template writes it; white space around it does not count."""
        self._first, *rest = _BETWEEN.split(mark.strip())
        self._rest = without_space("".join(rest))
        self._text = TextUntil(self._first)
        self._expected: ExpectedText | None = None
        """The rest of the mark, once its first tag has come."""
        self.ended = False
        """Whether the mark came."""

    def push(self, text: str, at: int) -> tuple[str, int]:
        """Returns the text that became final, and the index behind the mark if it came, else behind `text`."""
        out: list[str] = []
        while at < len(text) and not self.ended:
            if self._expected is not None:
                at = self._in_mark(self._expected, text, at, out)
                continue
            before, at = self._text.push(text, at)
            out.append(before)
            if self._text.found is not None:
                self._text = TextUntil(self._first)
                self.ended = not self._rest
                self._expected = ExpectedText([self._rest]) if self._rest else None
        return "".join(out), at

    def _in_mark(self, expected: ExpectedText, text: str, at: int, out: list[str]) -> int:
        at = expected.push(text, at)
        if expected.found is not None:
            self.ended = True
        elif expected.failed:  # the tag is part of the text, and another one may begin behind it
            self._expected = None
            out.append(self._first)
            self._text.hold(expected.raw)
        return at
