"""The n-grams that a sequence's probes have found, by their first token: few for each, few tokens in all."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from speculative_engine.drafters.lookup import Place

_MOST_FIRST_TOKENS = 1024
"""First tokens that n-grams are kept of; those that were not met for the longest time are forgotten."""


class Guesses:
    """Continuations of one token, those that begin alike merged: a `lookup.Text` whose places are beginnings."""

    def __init__(self, continuations: Iterable[Sequence[int]]):
        self._next: list[dict[int, int]] = [{}]
        """After each place, which place a token leads to; place 0 is the start."""
        self._times: Counter[int] = Counter()
        for continuation in continuations:
            place = 0
            for token in continuation:
                if token not in self._next[place]:
                    self._next[place][token] = len(self._next)
                    self._next.append({})
                place = self._next[place][token]
                self._times[place] += 1

    def following(self, where: int) -> list[tuple[int, float, int]]:
        """See Text.following."""
        total = sum(self._times[place] for place in self._next[where].values())
        return [(token, self._times[place] / total, place) for token, place in self._next[where].items()]


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
