"""Ends a text at the first stop string that is complete in it."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Takes a text piece by piece and passes on what can no longer belong to a stop string.

    What is passed on depends on the pieces joined together, not on where they are cut.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False):
        """include: whether the string that ends the text stays in it."""
        self._stops = tuple(stops)
        self._include = include
        self._held = ""
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str, *, ends: bool = True) -> str:
        """The text that became final; once a stop string is found, what stands before it, or up to its end, and
        nothing more.

        ends: whether a stop string that this piece completes is found; otherwise it passes by.
        """
        if self.found is not None:
            return ""
        if not self._stops:
            return text
        held = self._held + text
        # What was held back may have one within it that passed by: only those count that end in this piece.
        found = [(held.find(stop, max(0, len(self._held) - len(stop) + 1)), stop) for stop in self._stops]
        found = [(place, stop) for place, stop in found if place >= 0]
        if found and ends:
            # The one that ends first, whatever may follow; of those that end together, the longest.
            place, self.found = min(found, key=lambda each: (each[0] + len(each[1]), each[0]))
            self._held = ""
            return held[: place + len(self.found) if self._include else place]
        keep = max(self._overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """The text still held back, when the request ends for another reason."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of `text` that begins `stop`."""
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                return size
        return 0
