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
        # The held text may contain a stop string that was ignored: only those that end in this piece count.
        found = [(held.find(stop, max(0, len(self._held) - len(stop) + 1)), stop) for stop in self._stops]
        found = [(place, stop) for place, stop in found if place >= 0]
        if found and ends:
            # The stop string that ends first wins; among those that end together, the longest.
            place, self.found = min(found, key=lambda each: (each[0] + len(each[1]), each[0]))
            self._held = ""
            return held[: place + len(self.found) if self._include else place]
        keep = max(self._overlap(held, stop) for stop in self._stops)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Returns the text still held back, when the request ends for another reason."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Returns the length of the longest suffix of `text` that is a proper prefix of `stop`."""
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                return size
        return 0
