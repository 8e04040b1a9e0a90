"""An index of the n-grams of a text, updated token by token."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_core.engine.drafters.lookup.lookup_drafter import Place

_MOST_COMPARED = 16
"""Most places of an n-gram that are compared further, latest first; a text that repeats one token has as many places as
tokens."""
MOST_PLACES = 4
"""Most places used at once; further places of the same kind add little and cost as much."""


class NgramIndex:
    """A text (see `lookup.Text`) and its n-grams of one length; each place is chained to the previous one."""

    def __init__(self, n: int):
        self.tokens: list[int] = []
        self._n = n
        # Positions of the token after each n-gram: the latest by n-gram, and the previous one by position.
        self._latest: dict[tuple[int, ...], int] = {}
        self._before: list[int] = [-1]

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends to the text."""
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
        """Returns the places that follow the end of `context` in the text.

        They are ordered by the number of matching tokens, at most `longest`; among equals the latest comes first.
        """
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
            if where < len(text):  # nothing follows the text's end
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
        """Returns the token at a place.

        The end of the text continues from the previous occurrence of the last n-gram, so a repetitive text has no end.
        """
        if where == len(self.tokens):
            where = self._before[where]
        return [(self.tokens[where], 1.0, where + 1)] if where >= 0 else []
