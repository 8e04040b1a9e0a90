"""The n-grams that a sequence's probes have found, by their first token: few for each, few tokens in all."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from speculative_engine.drafters.lookup.lookup import Place

_MOST_FIRST_TOKENS = 1024
"""First tokens that n-grams are kept of; those that were not met for the longest time are forgotten."""


class Guesses:
    """Continuations of one token, those that begin alike merged: a `lookup.Text` whose places are beginnings, told
    apart as they are asked for."""

    def __init__(self, continuations: Iterable[Sequence[int]]):
        """continuations: all of one length."""
        self._places = [(0, list(continuations))]
        """By place, how many tokens are passed and the continuations that begin so; place 0 is the start."""

    def following(self, where: int) -> list[tuple[int, float, int]]:
        """See Text.following."""
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
    """Keeps, of each first token, the n-grams found last."""

    def __init__(self, guesses: int):
        """guesses: most n-grams of one first token."""
        self._guesses = guesses
        # By first token; in it the rest of each n-gram. Both in the order they were met, latest last.
        self._ngrams: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._ngrams.values()))

    def add(self, ngram: Sequence[int]) -> None:
        """Keep an n-gram of at least two tokens; one that is known counts as found last."""
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
        """Where a sequence may go on from whose last token this is; the n-gram found last comes first."""
        known = self._ngrams.get(token)
        if known is None:
            return []
        self._ngrams.move_to_end(token)
        return [Place(1, Guesses(reversed(known)), 0)]
