"""Marks before and around an answer: reasoning as ``<think>...</think>``, content as
``<|START_RESPONSE|>...<|END_RESPONSE|>``."""

from __future__ import annotations

from gateway_service.answers.part import AnswerParser, Content, Part, Reasoning, StepwiseParser
from gateway_service.answers.text_until import TextUntil, TrimmedText


class PlainParser:
    """Passes an answer on as text."""

    def push(self, text: str) -> list[Part]:
        """Returns the text."""
        return [Content(text)]

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns nothing."""
        return []


class ReasoningParser:
    """Reads the reasoning, and leaves what follows to another parser. White space around either is left out."""

    def __init__(self, begin: str, end: str, answer: AnswerParser, *, begun: bool) -> None:
        """begun: whether the output begins within the reasoning. The mark may come nevertheless."""
        self._begin = begin
        self._begun = begun
        self._answer = answer
        self._space: list[str] = []
        """White space before the first mark."""
        self._mark: str | None = ""
        """As much of the first mark as has come; None behind it, or where it cannot come any more."""
        self._reasoning: TextUntil | None = TextUntil(end)
        """The reasoning being read; None after it."""
        self._trimmed = TrimmedText()
        self._starts = False
        """Whether the answer after the reasoning has not begun."""

    def push(self, text: str) -> list[Part]:
        """Returns the parts that became final."""
        parts: list[Part] = []
        if self._mark is not None:
            text = self._begins(self._mark, text)
        if self._reasoning is not None and self._mark is None:
            reasoning, at = self._reasoning.push(text)
            parts.append(Reasoning(self._trimmed.push(reasoning)))
            if self._reasoning.found is None:
                return parts
            text = text[at:]
            self._reasoning, self._starts = None, True
        if self._starts:
            text = text.lstrip()
            self._starts = not text
        return [*parts, *self._answer.push(text)] if text else parts

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest."""
        if self._mark is not None:
            mark = "" if cut else self._mark
            return [*self._answer.push("".join(self._space) + mark), *self._answer.end(cut=cut)]
        if self._reasoning is not None:
            return [Reasoning(self._trimmed.push(self._reasoning.rest(cut=cut)))]
        return self._answer.end(cut=cut)

    def _begins(self, mark: str, text: str) -> str:
        """Decides whether the output begins with the mark; returns the text after it."""
        bare = mark + (text if mark else text.lstrip())
        if not mark:
            self._space.append(text[: len(text) - len(bare)])
        if bare != self._begin and self._begin.startswith(bare):
            self._mark = bare
            return ""
        self._mark = None
        if bare.startswith(self._begin):
            return bare.removeprefix(self._begin)
        if not self._begun:
            self._reasoning = None
        return "".join(self._space) + bare


class ContentMarksParser(StepwiseParser):
    """Leaves the marks out, and the rest to another parser."""

    def __init__(self, begin: str, end: str, answer: AnswerParser) -> None:
        """begin, end: the marks."""
        self._marks = begin, end
        self._answer = answer
        self._text = TextUntil(*self._marks)

    def _step(self, text: str, at: int) -> tuple[list[Part], int]:
        found, at = self._text.push(text, at)
        if self._text.found is not None:
            self._text = TextUntil(*self._marks)
        return (self._answer.push(found) if found else []), at

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest."""
        return [*self._answer.push(self._text.rest(cut=cut)), *self._answer.end(cut=cut)]
