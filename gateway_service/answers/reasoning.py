"""Marks before and around an answer: reasoning as ``<think>...</think>``, content as
``<|START_RESPONSE|>...<|END_RESPONSE|>``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway_service.answers.part import AnswerParser, CallStart, Content, Part, Reasoning, StepwiseParser, joined
from gateway_service.answers.text_until import TextUntil, TrimmedText

_LONGEST_HEAD = 256
"""Longest text between the mark of a call and its arguments; where they come later the reasoning mentions a mark."""
_STEP = 16
"""Letters that may be a call's and are read at once: most mentions of a mark show by the first."""


class PlainParser:
    """Passes an answer on as text."""

    def push(self, text: str) -> list[Part]:
        """Returns the text."""
        return [Content(text)]

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns nothing."""
        return []


class ReasoningParser:
    """Reads the reasoning, and leaves what follows to another parser. White space around either is left out.

    A call ends the reasoning as well: Qwen 3.5 often leaves out the mark before one. The mark of a call is not enough,
    since reasoning may mention it.
    """

    def __init__(
        self, begin: str, end: str, answer: Callable[[], AnswerParser], *, begun: bool, calls: Sequence[str] = ()
    ) -> None:
        """answer: makes the other parser. begun: whether the output begins within the reasoning. The mark may come
        nevertheless. calls: marks of calls, which are looked for in the reasoning."""
        self._begin, self._end, self._calls = begin, end, calls
        self._begun = begun
        self._make = answer
        self._answer = answer()
        self._space: list[str] = []
        """White space before the first mark."""
        self._mark: str | None = ""
        """As much of the first mark as has come; None behind it, or where it cannot come any more."""
        self._reasoning: TextUntil | None = TextUntil(end, *calls)
        """The reasoning being read; None after it."""
        self._trial: AnswerParser | None = None
        """The parser that reads what may be a call, behind its mark in the reasoning."""
        self._called = self._tried = ""
        """The mark, and what the trial has read behind it."""
        self._trimmed = TrimmedText()
        self._starts = False
        """Whether the answer after the reasoning has not begun."""

    def push(self, text: str) -> list[Part]:
        """Returns the parts that became final."""
        parts: list[Part] = []
        if self._mark is not None:
            text = self._begins(self._mark, text)
        if self._reasoning is not None and self._mark is None:
            parts, text = self._in_reasoning(text)
            if self._reasoning is not None:
                return parts
        if self._starts:
            text = text.lstrip()
            self._starts = not text
        return [*parts, *self._answer.push(text)] if text else parts

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest."""
        if self._mark is not None:
            mark = "" if cut else self._mark
            return [*self._answer.push("".join(self._space) + mark), *self._answer.end(cut=cut)]
        if self._trial is not None:
            rest = joined(self._trial.end(cut=cut))
            if cut or _calls(rest):
                return rest if _calls(rest) else []
            return [Reasoning(self._trimmed.push(self._called + self._tried))]
        if self._reasoning is not None:
            return [Reasoning(self._trimmed.push(self._reasoning.rest(cut=cut)))]
        return self._answer.end(cut=cut)

    def _in_reasoning(self, text: str) -> tuple[list[Part], str]:
        """Returns the parts that became final, and the text behind the reasoning."""
        parts: list[Part] = []
        at = 0
        while at < len(text) and self._reasoning is not None:
            if self._trial is not None:
                more, text, at = self._in_trial(self._trial, text, at)
                parts += more
                continue
            reasoning, at = self._reasoning.push(text, at)
            parts.append(Reasoning(self._trimmed.push(reasoning)))
            mark = self._reasoning.found
            if mark == self._end:
                self._reasoning, self._starts = None, True
            elif mark is not None:
                self._reasoning = TextUntil(self._end, *self._calls)
                self._trial, self._called, self._tried = self._make(), mark, ""
                self._trial.push(mark)
        return parts, text[at:]

    def _in_trial(self, trial: AnswerParser, text: str, at: int) -> tuple[list[Part], str, int]:
        """Reads what may be a call; returns the parts that became final, and the place of what was not read. What turns
        out to be none is read again, as reasoning."""
        piece = text[at : at + min(_STEP, _LONGEST_HEAD - len(self._tried))]
        parts = joined(trial.push(piece))
        self._tried += piece
        at += len(piece)
        if _calls(parts):
            self._answer, self._reasoning, self._trial = trial, None, None
        elif parts or len(self._tried) == _LONGEST_HEAD:
            parts = [Reasoning(self._trimmed.push(self._called))]
            before = max(0, len(self._tried) - at)  # letters of earlier pieces
            text, at = self._tried[:before] + text, at + before - len(self._tried)
            self._trial = None
        return parts, text, at

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


def _calls(parts: Sequence[Part]) -> bool:
    """Whether parts begin with a call."""
    return bool(parts) and isinstance(parts[0], CallStart)


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
