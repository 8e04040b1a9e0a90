"""Where the n-grams of a text stand, kept up token by token."""

from __future__ import annotations

from collections.abc import Sequence

from speculative_engine.drafters.lookup.lookup import Place

_MOST_COMPARED = 16
"""Places of a short n-gram that are compared further, latest first: in a text of one token repeated there are as many
as tokens."""
MOST_PLACES = 4
"""Places that are of use at once; more of the same say little new, and cost as much."""


class NgramIndex:
    """A text (see `lookup.Text`) and its n-grams of one length; each place is chained to the one before it."""

    def __init__(self, n: int):
        self.tokens: list[int] = []
        self._n = n
        # Where the token after the n-gram stands: the latest place by n-gram, and the one before by place.
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = [-1]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append to the text."""
        text, n = self.tokens, self._n
        for token in tokens:
            text.append(token)
            end = len(text)
            if end < n:
                self._before.append(-1)
                continue
            ngram = tuple(text[end - n :])
            self._before.append(self._latest.get(ngram, -1))
            self._latest[ngram] = end

    def find(self, context: Sequence[int], longest: int) -> list[Place]:
        """Places after what `context` ends with, by the number of tokens that agree, `longest` at most; of equal ones
        the latest first."""
        text, n = self.tokens, self._n
        if len(context) < n:
            return []
        longest = min(longest, len(context))
        found: list[Place] = []
        full = 0
        where = self._latest.get(tuple(context[-n:]), -1)
        for _ in range(_MOST_COMPARED):
            if where < 0:
                break
            if where < len(text):  # at the end nothing follows
                length = n
                most = min(longest, where)
                while length < most and text[where - length - 1] == context[-length - 1]:
                    length += 1
                found.append(Place(length, self, where))
                full += length == longest
                if full == MOST_PLACES:
                    break
            where = self._before[where]
        found.sort(key=lambda place: -place.length)
        return found[:MOST_PLACES]

    def following(self, where: int) -> list[tuple[int, float, int]]:
        """See Text.following. Whoever has come to the end has the last n-gram behind it, and goes on where that stood
        before: so a text that repeats itself has no end."""
        if where == len(self.tokens):
            where = self._before[where]
        return [(self.tokens[where], 1.0, where + 1)] if where >= 0 else []
