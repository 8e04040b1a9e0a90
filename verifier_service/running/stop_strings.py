"""Ends a text at its first complete stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Takes a text in pieces and passes on what can no longer belong to a stop string.

    The output depends on the joined text, not on where it is cut into pieces.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False):
        """include: whether the stop string that ends the text stays in it."""
        self._stops = tuple(stops)
        self._include = include
        self._borders = [_borders(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        """Length of the longest end of the text that begins each stop string, without being all of it."""
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str, *, ends: bool = True) -> str:
        """Returns the text that became final. When a stop string is found, that is the text before it, or through its
        end if it is included; afterwards it is empty.

        ends: whether a stop string that this piece completes ends the text; if not, it is ignored.
        """
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        for place, letter in enumerate(text, len(self._held) + 1):
            ended = self._ended_by(letter)
            if ended is not None and ends:
                self.found, self._held = ended, ""
                return held[:place] if self._include else held[: place - len(ended)]
        passed = len(held) - max(self._matched)
        self._held = held[passed:]
        return held[:passed]

    def flush(self) -> str:
        """Returns the text still held back, when the request ends for another reason."""
        held, self._held = self._held, ""
        return held

    def _ended_by(self, letter: str) -> str | None:
        """Adds a letter to the text; returns the stop string that it completes, the longest if there are several."""
        ended: str | None = None
        for index, stop in enumerate(self._stops):
            matched, borders = self._matched[index], self._borders[index]
            while matched and stop[matched] != letter:
                matched = borders[matched]
            matched += stop[matched] == letter
            if matched == len(stop):
                matched = borders[matched]
                if ended is None or len(stop) > len(ended):
                    ended = stop
            self._matched[index] = matched
        return ended


def _borders(stop: str) -> list[int]:
    """Returns for each beginning of a text, by its length, the length of the longest shorter one that it ends with
    (Knuth, Morris, Pratt, "Fast pattern matching in strings", SIAM J. Comput. 1977)."""
    borders = [0, 0]
    for letter in stop[1:]:
        border = borders[-1]
        while border and stop[border] != letter:
            border = borders[border]
        borders.append(border + (stop[border] == letter))
    return borders
