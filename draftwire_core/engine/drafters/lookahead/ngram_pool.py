"""The n-grams found by a sequence's probes, by first token, limited in number per first token and in all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from draftwire_core.engine.drafters.lookup.lookup_drafter import Place

_MOST_FIRST_TOKENS = 1024
"""Most first tokens; beyond this, the least recently used are dropped with their n-grams."""


class Guesses:
    """The continuations of one token: a `lookup.Text` whose places are prefixes of them, each shared prefix one place.

    Places are numbered as they are asked for.
    """

    def __init__(self, continuations: Iterable[Sequence[int]]):
        """continuations: all of the same length."""
        self._places = [(0, list(continuations))]
        """By place, the length of the prefix and the continuations with that prefix; place 0 is the empty prefix."""

    def following(self, where: int) -> list[tuple[int, float, int]]:
        """Returns the tokens after a place: each token, its relative frequency, and the place after it."""
        passed, continuations = self._places[where]
        after: dict[int, list[Sequence[int]]] = {}
        for continuation in continuations:
            if passed < len(continuation):
                after.setdefault(continuation[passed], []).append(continuation)
        found: list[tuple[int, float, int]] = []
        for token, those in after.items():
            found.append((token, len(those) / len(continuations), len(self._places)))
            self._places.append((passed + 1, those))
        return found


class NgramPool:
    """Keeps the n-grams found most recently, by first token."""

    def __init__(self, guesses: int):
        """guesses: most n-grams per first token."""
        self._guesses = guesses
        # The remaining tokens of each n-gram, by first token; both least recently used first.
        self._ngrams: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._ngrams.values()))

    def add(self, ngram: Sequence[int]) -> None:
        """Adds an n-gram of at least two tokens; a known one becomes the most recent."""
        first, rest = ngram[0], tuple(ngram[1:])
        known = self._ngrams.setdefault(first, OrderedDict())
        known[rest] = None
        known.move_to_end(rest)
        if len(known) > self._guesses:
            known.popitem(last=False)
        self._ngrams.move_to_end(first)
        if len(self._ngrams) > _MOST_FIRST_TOKENS:
            self._ngrams.popitem(last=False)

    def places(self, token: int) -> list[Place]:
        """Returns the place after `token`, at which the most recent n-gram comes first; empty for an unknown token."""
        known = self._ngrams.get(token)
        if known is None:
            return []
        self._ngrams.move_to_end(token)
        return [Place(1, Guesses(reversed(known)), 0)]
