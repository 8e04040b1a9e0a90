"""Marks around an answer's text, as ``<|START_RESPONSE|>...<|END_RESPONSE|>``."""

from __future__ import annotations

from gateway_service.answers.part import AnswerParser, Part
from gateway_service.answers.text_until import TextUntil


class ContentMarksParser:
    """Leaves the marks out, and the rest to another parser."""

    def __init__(self, begin: str, end: str, answer: AnswerParser) -> None:
        """begin, end: the marks."""
        self._marks = begin, end
        self._answer = answer
        self._text = TextUntil(*self._marks)

    def push(self, text: str) -> list[Part]:
        """Returns the parts that became final."""
        parts: list[Part] = []
        at = 0
        while at < len(text):
            found, at = self._text.push(text, at)
            if self._text.found is not None:
                self._text = TextUntil(*self._marks)
            if found:
                parts += self._answer.push(found)
        return parts

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest."""
        return [*self._answer.push(self._text.rest(cut=cut)), *self._answer.end(cut=cut)]
