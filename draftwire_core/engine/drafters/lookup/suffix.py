"""Suffix decoding: next tokens are weighted by how often they followed the same suffix (arXiv 2411.04975)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwire_core.engine.drafters.lookup.lookup_drafter import LookupDrafter, Place
from draftwire_core.engine.drafters.lookup.suffix_automaton import SuffixAutomaton
from draftwire_core.engine.errors import FieldError

_LONGEST_LEAST = 64
_KEEP = range(1_000, 10_000_001)
_CONTEXTS = 3
"""Most suffixes examined, longest first; each gets a part of the probability that longer ones left."""


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """The texts to search, and the least match."""

    min: int = 2
    """Fewest matching tokens."""
    shared: bool = False
    """Whether texts of other requests, prompts and outputs, are searched too."""
    keep: int = 100_000
    """Number of tokens kept from other requests, besides those still running; only with `shared`."""

    def __post_init__(self) -> None:
        if not 1 <= self.min <= _LONGEST_LEAST:
            raise FieldError("min", f"must be from 1 to {_LONGEST_LEAST}, got {self.min}")
        if self.keep not in _KEEP:
            raise FieldError("keep", f"must be from {_KEEP.start} to {_KEEP.stop - 1}, got {self.keep}")


class SharedTexts:
    """The texts of many requests, in two automata since an automaton cannot forget.

    New texts go into the younger one. When it has half of the tokens to keep, it replaces the older one.
    """

    def __init__(self, keep: int):
        self._most = keep // 2
        self.older = SuffixAutomaton()
        self.younger = SuffixAutomaton()

    def join(self) -> tuple[SuffixAutomaton, SuffixAutomaton]:
        """Returns the automaton for the text of a new request, and the one to search besides it."""
        if self.younger.tokens >= self._most:
            self.older, self.younger = self.younger, SuffixAutomaton()
        return self.younger, self.older


class SuffixLookup:
    """Finds the longest suffixes of one sequence that also occur elsewhere in it or in other texts."""

    def __init__(self, own: SuffixAutomaton, older: SuffixAutomaton | None, least: int):
        """own: receives this sequence. older: is only read."""
        self._own = own
        self._older = older
        self._least = least
        self._last = 0
        # The longest suffix that occurs in the older texts: its state, and its length.
        self._state, self._length = 0, 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds the tokens to the sequence's automaton, and follows them in the older one."""
        for token in tokens:
            self._last = self._own.extend(self._last, token)
        if self._older is not None:
            for token in tokens:
                self._state, self._length = self._older.follow(self._state, self._length, token)

    def places(self) -> list[Place]:
        """Returns the places after the longest suffixes, from both automata."""
        own = self._own
        # The whole sequence has a continuation only if another text begins with it.
        state = self._last if own.next[self._last] else own.link[self._last]
        places = self._suffixes(own, state, own.length[state] if state > 0 else 0)
        if self._older is not None:
            self._state = self._older.state_of(self._state, self._length)
            places += self._suffixes(self._older, self._state, self._length)
            places.sort(key=lambda place: -place.length)
        return places[:_CONTEXTS]

    def _suffixes(self, text: SuffixAutomaton, state: int, length: int) -> list[Place]:
        places: list[Place] = []
        while state > 0 and length >= self._least and len(places) < _CONTEXTS:
            places.append(Place(length, text, state))
            state = text.link[state]
            length = text.length[state]
        return places


def suffix_drafter(options: SuffixOptions) -> LookupDrafter:
    """Makes the drafter `local:suffix`."""
    if not options.shared:
        return LookupDrafter(lambda _: SuffixLookup(SuffixAutomaton(), None, options.min))
    texts = SharedTexts(options.keep)
    return LookupDrafter(lambda _: SuffixLookup(*texts.join(), options.min))
