"""Suffix decoding: next tokens are weighted by how often they followed the same suffix (arXiv 2411.04975)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwire_core.engine.checkpoint.load_errors import stop_if_abandoned
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
    """Whether texts of other requests, prompts and outputs, are searched too; private ones are not among them."""
    keep: int = 100_000
    """Number of tokens kept from other requests, besides those still running; only with `shared`."""
    texts: str = ""
    """File of texts of earlier requests to begin with (see `shared_text_file`), which may not exist yet; only with
    `shared`."""

    def __post_init__(self) -> None:
        if not 1 <= self.min <= _LONGEST_LEAST:
            raise FieldError("min", f"must be from 1 to {_LONGEST_LEAST}, got {self.min}")
        if self.keep not in _KEEP:
            raise FieldError("keep", f"must be from {_KEEP.start} to {_KEEP.stop - 1}, got {self.keep}")
        if self.texts and not self.shared:
            raise FieldError("texts", "needs shared=true, since its texts are those of other requests")

    @property
    def tokens_read(self) -> int:
        """Most tokens that are read of the file: three quarters of those to keep. With all of them the younger
        automaton would be full at once, and the first request would have the older half forgotten."""
        return 3 * self.keep // 4


class SharedTexts:
    """The texts of many requests, in two automata since an automaton cannot forget.

    New texts go into the younger one. When it has half of the tokens to keep, it replaces the older one.
    """

    def __init__(self, keep: int):
        self._most = keep // 2
        self.older = SuffixAutomaton()
        self.younger = SuffixAutomaton()

    def begin_with(self, texts: Sequence[Sequence[int]]) -> None:
        """Adds texts that have ended, of which the first is kept longest. Takes about 3 microseconds per token."""
        for text in reversed(texts):
            stop_if_abandoned()
            automaton, _ = self.join()
            last = 0
            for token in text:
                last = automaton.extend(last, token)

    def join(self) -> tuple[SuffixAutomaton, SuffixAutomaton]:
        """Returns the automaton for the text of a new request, and the one to search besides it."""
        if self.younger.tokens >= self._most:
            self.older, self.younger = self.younger, SuffixAutomaton()
        return self.younger, self.older

    def lookup(self, least: int, *, private: bool) -> SuffixLookup:
        """Returns the lookup of a new request. A private one reads these texts, and is not added to them."""
        if private:
            return SuffixLookup(SuffixAutomaton(), (self.younger, self.older), least)
        own, older = self.join()
        return SuffixLookup(own, (older,), least)


class _Followed:
    """A sequence's longest suffix that occurs in texts to which it does not belong."""

    def __init__(self, text: SuffixAutomaton):
        self.text = text
        self.length = 0
        self._state = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Adds the sequence's next tokens."""
        self.present()
        for token in tokens:
            self._state, self.length = self.text.follow(self._state, self.length, token)

    def present(self) -> int:
        """Returns the suffix's state, which texts added since may have split."""
        self._state = self.text.state_of(self._state, self.length)
        return self._state


class SuffixLookup:
    """Finds the longest suffixes of one sequence that also occur elsewhere in it or in other texts."""

    def __init__(self, own: SuffixAutomaton, others: Sequence[SuffixAutomaton], least: int):
        """own: receives this sequence. others: are only read."""
        self._own = own
        self._others = [_Followed(each) for each in others]
        self._least = least
        self._last = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds the tokens to the sequence's automaton, and follows them in the other ones."""
        for token in tokens:
            self._last = self._own.extend(self._last, token)
        for other in self._others:
            other.follow(tokens)

    def places(self) -> list[Place]:
        """Returns the places after the longest suffixes, from all automata."""
        own = self._own
        # The whole sequence has a continuation only if another text begins with it.
        state = self._last if own.next[self._last] else own.link[self._last]
        places = self._suffixes(own, state, own.length[state] if state > 0 else 0)
        for other in self._others:
            places += self._suffixes(other.text, other.present(), other.length)
        if self._others:
            places.sort(key=lambda place: -place.length)
        return places[:_CONTEXTS]

    def _suffixes(self, text: SuffixAutomaton, state: int, length: int) -> list[Place]:
        places: list[Place] = []
        while state > 0 and length >= self._least and len(places) < _CONTEXTS:
            places.append(Place(length, text, state))
            state = text.link[state]
            length = text.length[state]
        return places


def suffix_drafter(options: SuffixOptions, texts: Sequence[Sequence[int]] = ()) -> LookupDrafter:
    """Makes the drafter `local:suffix`. texts: to begin with if texts are shared, the ones to be kept longest first."""
    if not options.shared:
        return LookupDrafter(lambda _: SuffixLookup(SuffixAutomaton(), (), options.min))
    shared = SharedTexts(options.keep)
    shared.begin_with(texts)
    return LookupDrafter(lambda spec: shared.lookup(options.min, private=spec.private))
