"""The parts of an answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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

    def end(self) -> list[Part]:
        """Returns the rest, at the end of the answer."""


def joined(parts: Iterable[Part]) -> list[Part]:
    """Returns parts with neighbours of one kind as one, and without empty texts."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        match last, part:
            case _, Content("") | Reasoning("") | CallArguments(_, ""):
                continue
            case Content(before), Content(text):
                found[-1] = Content(before + text)
            case Reasoning(before), Reasoning(text):
                found[-1] = Reasoning(before + text)
            case CallArguments(index, before), CallArguments(same, text) if index == same:
                found[-1] = CallArguments(index, before + text)
            case _:
                found.append(part)
    return found
