"""An answer taken apart as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gateway_service.answers.part import AnswerParser, CallArguments, CallStart, Content, Part, Reasoning, joined


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The content, the reasoning and the calls of an answer."""

    content: str
    reasoning: str
    calls: Sequence[Call]

    @classmethod
    def of(cls, parts: Iterable[Part]) -> Answer:
        """Returns the answer that consists of these parts."""
        content = reasoning = ""
        found: list[Call] = []
        for part in joined(parts):
            match part:
                case Content(text):
                    content += text
                case Reasoning(text):
                    reasoning += text
                case CallStart(_, name):
                    found.append(Call(name, ""))
                case CallArguments(index, text):
                    found[index] = Call(found[index].name, found[index].arguments + text)
        return cls(content, reasoning, found)

    @classmethod
    def read(cls, parser: AnswerParser, text: str, *, cut: bool = False) -> Answer:
        """Returns the answer that a text spells. cut: whether it was cut off."""
        return cls.of([*parser.push(text), *parser.end(cut=cut)])
