"""Turn markers of the target's chat template, read as those of the draft model's own.

A draft model that was trained on conversations answers in another register if it reads the marks of another template
as text. The symbols (`Vocabulary.symbols`) of a committed text are therefore searched for the target's markers, and
each is replaced by the draft model's, the longest of the earliest first. A marker that is not complete yet is read as
it is; once it is, the end of what has been read is replaced. So what is read depends on the committed tokens alone and
not on the verdicts in which they came.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self

from draftwire_core.engine.text.turn_markers import START, Turn
from draftwire_core.engine.text.vocabulary import is_special

_TEXT = 6
"""Fewest characters besides white space of a marker that has no special token."""
_SAME = ((Turn.USER_PROMPT, Turn.USER_ASSISTANT), (Turn.PROMPT, Turn.ASSISTANT))
"""Places at the end of a prompt, and the same ones before an answer that has been given."""


class TurnTranslation:
    """The target's markers with the draft model's, as symbols."""

    def __init__(self, markers: Mapping[str, str], plain: Mapping[int, str]):
        """markers: the draft model's by the target's, at least one. plain: how the draft model reads the target's
        special tokens that are not part of a marker, by the numbers of their symbols."""
        self._markers = markers
        self._plain = {ord(START): "", **plain}
        longest_first = sorted(markers, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._begun = {marker[:length] for marker in markers for length in range(1, len(marker))}
        self._longest = len(longest_first[0])

    @classmethod
    def of(cls, target: Mapping[Turn, str], draft: Mapping[Turn, str], plain: Mapping[int, str]) -> Self | None:
        """Returns the translation of the places that both templates have; None if there is none to translate."""
        # Where the target's prompt begins what the draft model's template does not know, such as reasoning, that is
        # read as text.
        skipped = {
            prompt
            for prompt, given in _SAME
            if given in target
            and target.get(prompt, "").startswith(target[given])
            and draft.get(prompt) == draft.get(given)
        }
        markers: dict[str, str] = {}
        for turn in Turn:
            if turn in target and turn in draft and turn not in skipped and _is_distinct(target[turn]):
                markers.setdefault(target[turn], draft[turn].removeprefix(START))
        return cls(markers, plain) if markers else None

    def translate(self, symbols: str) -> str:
        """Returns the draft model's symbols for the target's."""
        read: list[str] = []
        done = 0
        for match in self._pattern.finditer(symbols):
            read += symbols[done : match.start()].translate(self._plain), self._markers[match.group()]
            done = match.end()
        return "".join(read) + symbols[done:].translate(self._plain)

    def settled(self, symbols: str) -> int:
        """Returns how many of the target's symbols are read in the same way whatever follows them; the others may be
        the beginning of a marker."""
        end = len(symbols)
        first = max(0, end - self._longest + 1)
        spans = [match.span() for match in self._pattern.finditer(symbols) if match.end() > first]
        for place in range(first, end):
            if symbols[place:] in self._begun and not any(start < place < stop for start, stop in spans):
                return place
        return end


class TurnReader:
    """One sequence's end, as far as it may still become a marker."""

    def __init__(self, translation: TurnTranslation):
        self._translation = translation
        self._held = START
        self._read = ""

    def follow(self, symbols: str) -> tuple[str, str]:
        """Takes the next of the target's symbols. Returns what the draft model's text ended with, and what is there
        from now on, the new symbols included."""
        text = self._held + symbols
        settled = self._translation.settled(text)
        before = self._read
        self._held, self._read = text[settled:], self._translation.translate(text[settled:])
        return before, self._translation.translate(text[:settled]) + self._read


def _is_distinct(marker: str) -> bool:
    """Whether a marker is unlikely in ordinary text: it has a special token, or is long enough."""
    return any(is_special(symbol) for symbol in marker.removeprefix(START)) or len("".join(marker.split())) >= _TEXT
