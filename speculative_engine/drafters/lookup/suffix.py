"""Suffix decoding: a sequence goes on as often as texts before did after the same tokens (arXiv 2411.04975)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from speculative_engine.drafters.lookup.lookup import Place
from speculative_engine.drafters.lookup.lookup_drafter import LookupDrafter
from speculative_engine.drafters.lookup.suffix_automaton import SuffixAutomaton
from speculative_engine.field_error import FieldError

_LONGEST_LEAST = 64
_KEEP = range(1_000, 10_000_001)
_CONTEXTS = 3
"""Suffixes that are looked at, longest first; what one leaves open goes to the next."""


@dataclass(frozen=True, slots=True)
class SuffixOptions:
    """What is looked up, and where."""

    min: int = 2
    """Fewest tokens that agree."""
    shared: bool = False
    """Whether texts of other requests are looked up, too, prompts and outputs."""
    keep: int = 100_000
    """Tokens of other requests that are kept, beside those that run; only with `shared`."""

    def __post_init__(self) -> None:
        if not 1 <= self.min <= _LONGEST_LEAST:
            raise FieldError("min", f"must be from 1 to {_LONGEST_LEAST}, got {self.min}")
        if self.keep not in _KEEP:
            raise FieldError("keep", f"must be from {_KEEP.start} to {_KEEP.stop - 1}, got {self.keep}")


class SharedTexts:
    """The texts of many requests. An automaton forgets nothing, so there are two: new texts go into the younger one,
    and when that has half of what may be kept, it takes the place of the older one."""

    def __init__(self, keep: int):
        self._most = keep // 2
        self.older = SuffixAutomaton()
        self.younger = SuffixAutomaton()

    def join(self) -> tuple[SuffixAutomaton, SuffixAutomaton]:
        """Where the text of a request that begins goes, and where it is looked up beside that."""
        if self.younger.tokens >= self._most:
            self.older, self.younger = self.younger, SuffixAutomaton()
        return self.younger, self.older


class SuffixLookup:
    """Finds the longest suffixes of one sequence that stand elsewhere in it, or in other texts."""

    def __init__(self, own: SuffixAutomaton, older: SuffixAutomaton | None, least: int):
        """own: takes this sequence in. older: is only read."""
        self._own = own
        self._older = older
        self._least = least
        self._last = 0
        # The longest suffix that the older texts know: its state, and its length.
        self._state, self._length = 0, 0

    def extend(self, tokens: Sequence[int]) -> None:
        """See Lookup.extend."""
        for token in tokens:
            self._last = self._own.extend(self._last, token)
        if self._older is not None:
            for token in tokens:
                self._state, self._length = self._older.follow(self._state, self._length, token)

    def places(self) -> list[Place]:
        """See Lookup.places."""
        own = self._own
        # The whole of it goes on only where another text was the same so far.
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
    """The drafter `local:suffix`."""
    if not options.shared:
        return LookupDrafter(lambda _: SuffixLookup(SuffixAutomaton(), None, options.min))
    texts = SharedTexts(options.keep)
    return LookupDrafter(lambda _: SuffixLookup(*texts.join(), options.min))
