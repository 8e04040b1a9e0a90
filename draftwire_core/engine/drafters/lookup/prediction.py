"""Predicted output: a request supplies the text it expects, and its output is tracked in that text."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_core.engine.drafters.lookup.lookup_drafter import LookupDrafter, Place
from draftwire_core.engine.drafters.lookup.ngram_index import MOST_PLACES, NgramIndex
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel

_NGRAM = 2
_LONGEST = 16
"""Most output tokens compared to find the place again."""
_NEAR = range(-16, 65)
"""Range searched first, relative to the predicted token that did not come."""
_FIRM = 3
"""Number of matching tokens after which a place counts as the output's position, to return to."""
_MOST_INDEXED = 512


class PredictionLookup:
    """Tracks one sequence's output in its prediction.

    When the two diverge, every place from which the output may continue is followed until it no longer matches.
    Candidates are nearby places after the last output token, and places anywhere after the last two. The place where
    they diverged, skipping none or as many tokens as were replaced, is a candidate too.
    """

    def __init__(self, prediction: Sequence[int], prompt_length: int):
        """prompt_length: number of leading tokens of the sequence that are not output."""
        self._prediction = list(prediction)
        self._prompt_left = prompt_length
        self._index = NgramIndex(_NGRAM)
        self._last: list[int] = []
        # Candidate places: number of matched tokens, and index of the next token. The request's own claim counts as
        # some matched tokens at the start.
        self._followed: list[tuple[int, int]] = [(_FIRM, 0)]
        self._lost_at = 0
        self._since_lost = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Indexes a part of the prediction, and follows the output's new tokens."""
        indexed = len(self._index.tokens)
        self._index.extend(self._prediction[indexed : indexed + _MOST_INDEXED])
        output = tokens[self._prompt_left :]
        self._prompt_left = max(0, self._prompt_left - len(tokens))
        for token in output:
            self._last = [*self._last[1 - _LONGEST :], token]
            self._follow(token)

    def places(self) -> list[Place]:
        """Returns the places that still match."""
        return [Place(length, self, where) for length, where in self._followed]

    def following(self, where: int) -> list[tuple[int, float, int]]:
        """Returns the predicted token at a place, none at the prediction's end."""
        return [(self._prediction[where], 1.0, where + 1)] if where < len(self._prediction) else []

    def _follow(self, token: int) -> None:
        agreeing = [(length + 1, where + 1) for length, where in self._followed if self._at(where) == token]
        if not agreeing:
            length, where = max(self._followed, default=(0, 0))
            if length >= _FIRM:
                self._lost_at, self._since_lost = where, 0
            self._since_lost += 1
            agreeing = self._found()
        self._followed = agreeing

    def _at(self, where: int) -> int | None:
        return self._prediction[where] if where < len(self._prediction) else None

    def _found(self) -> list[tuple[int, int]]:
        """Returns the places from which the output may continue: longest match first, among equals the nearest."""
        lost_at, end = self._lost_at, len(self._prediction)
        found = {place.where: place.length for place in self._index.find(self._last, _LONGEST)}
        for where in range(max(1, lost_at + _NEAR.start), min(end, lost_at + _NEAR.stop)):
            if self._prediction[where - 1] == self._last[-1]:
                found[where] = self._agreement(where)
        found.setdefault(lost_at + self._since_lost, 1)
        found.setdefault(lost_at, 1)
        places = sorted((-length, abs(where - lost_at), where) for where, length in found.items() if where < end)
        return [(-negative, where) for negative, _, where in places[:MOST_PLACES]]

    def _agreement(self, where: int) -> int:
        length = 0
        most = min(where, len(self._last))
        while length < most and self._prediction[where - length - 1] == self._last[-length - 1]:
            length += 1
        return length


def prediction_drafter(
    prediction: Sequence[int], prompt_length: int, alike: AcceptanceModel | None = None
) -> LookupDrafter:
    """Makes the drafter of one request's prediction. alike: acceptance of earlier predictions."""
    return LookupDrafter(lambda _: PredictionLookup(prediction, prompt_length), AcceptanceModel(alike))
