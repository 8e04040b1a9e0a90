"""The parts of an answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the reasoning before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """The start of a call: its tool is known."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """A piece of a call's arguments, which are JSON text."""

    index: int
    text: str


Part = Content | Reasoning | CallStart | CallArguments


class AnswerParser(Protocol):
    """Takes an answer's text in pieces. The parts, joined, do not depend on where the text is cut."""

    def push(self, text: str) -> list[Part]:
        """Returns the parts that became final with the text's next piece."""

    def end(self, *, cut: bool = False) -> list[Part]:
        """Returns the rest, at the end of the answer.

        A call that has begun is a call if its name is known. Otherwise it is left out with its marks. cut: whether the
        answer was cut off, so that its last letters may be half a mark.
        """


class StepwiseParser(ABC):
    """A parser that reads a piece in steps, each up to where something else begins."""

    def push(self, text: str) -> list[Part]:
        """Returns the parts that became final."""
        parts: list[Part] = []
        at = 0
        while at < len(text):
            more, at = self._step(text, at)
            parts += more
        return parts

    @abstractmethod
    def _step(self, text: str, at: int) -> tuple[list[Part], int]:
        """Reads from an index on; returns the parts that became final, and the index of what was not read."""


def joined(parts: Iterable[Part]) -> list[Part]:
    """Returns parts with neighbours of one kind as one, and without empty texts."""
    found: list[Part] = []
    for _, group in groupby(parts, lambda part: (type(part), getattr(part, "index", None))):
        texts: list[str] = []
        for part in group:
            if isinstance(part, CallStart):
                found.append(part)
            else:
                texts.append(part.text)
        if (text := "".join(texts)) and not isinstance(part, CallStart):
            found.append(replace(part, text=text))
    return found
