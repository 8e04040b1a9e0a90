"""Text up to a mark of several tags, with whatever white space between them."""

from __future__ import annotations

import re

from gateway_service.answers.spelled.expected_text import ExpectedText, without_space
from gateway_service.answers.text_until import TextUntil

_BETWEEN = re.compile(r"(?<=[>\]])\s*(?=[<\[])")


class TextUntilTags:
    """Passes a text on until a mark comes, in pieces. Models leave out line ends between tags, or write others."""

    def __init__(self, mark: str, *stops: str) -> None:
        """mark: the mark as the template writes it; white space around it does not count. stops: other tags that stop
        the text for the time being."""
        self._first, *rest = _BETWEEN.split(mark.strip())
        self._rest = without_space("".join(rest))
        self._stops = [stop for stop in stops if stop]
        self._text = self._begun()
        self._expected: ExpectedText | None = None
        """The rest of the mark, once its first tag has come."""
        self.ended = False
        """Whether the mark came."""
        self.stopped = ""
        """The other tag that came."""

    def push(self, text: str, at: int) -> tuple[str, int]:
        """Returns the text that became final, and the index behind the mark or another tag if one came, else behind
        `text`."""
        out: list[str] = []
        while at < len(text) and not (self.ended or self.stopped):
            if self._expected is not None:
                at = self._in_mark(self._expected, text, at, out)
                continue
            before, at = self._text.push(text, at)
            out.append(before)
            found = self._text.found
            if found is not None:
                self._text = self._begun()
            if found in self._stops:
                self.stopped = found
            elif found is not None:
                self.ended = not self._rest
                self._expected = ExpectedText([self._rest]) if self._rest else None
        return "".join(out), at

    def go_on(self, text: str) -> None:
        """Goes on behind another tag, which was part of the text. text: what has come behind it."""
        self.stopped = ""
        self._text.hold(text)

    def _begun(self) -> TextUntil:
        return TextUntil(self._first, *self._stops)

    def _in_mark(self, expected: ExpectedText, text: str, at: int, out: list[str]) -> int:
        at = expected.push(text, at)
        if expected.found is not None:
            self.ended = True
        elif expected.failed:  # the tag is part of the text, and another one may begin behind it
            self._expected = None
            out.append(self._first)
            self._text.hold(expected.raw)
        return at
