"""Text up to a marker, in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class TextUntil:
    """Passes a text on until one of several markers comes, holding back what may still be the start of one."""

    def __init__(self, *markers: str) -> None:
        """Starts before the text."""
        self._markers = markers
        self._held = ""
        self.found: str | None = None
        """The marker that came."""

    def push(self, text: str) -> tuple[str, str]:
        """Returns the text that became final, and what follows the marker if it came."""
        held = self._held + text
        places = [(held.find(marker), marker) for marker in self._markers]
        places = [(place, marker) for place, marker in places if place >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return held[:place], held[place + len(self.found) :]
        keep = overlap(held, self._markers)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep], ""

    def rest(self) -> str:
        """Returns the text held back, at the end."""
        held, self._held = self._held, ""
        return held


class TrimmedText:
    """Holds back white space, which counts only if other text follows it."""

    def __init__(self, *, start: bool = False) -> None:
        """start: whether white space at the start of the text counts as well."""
        self._counts = start
        self._held = ""

    def push(self, text: str) -> str:
        """Returns the text that became final."""
        text = self._held + text
        if not self._counts:
            text = text.lstrip()
        end = text.rstrip()
        self._held = text[len(end) :]
        self._counts = self._counts or bool(end)
        return end

    def drop(self) -> None:
        """Forgets the white space held back, and that at the start of what follows."""
        self._held = ""
        self._counts = False

    def rest(self) -> str:
        """Returns the white space held back, at the end."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, markers: Sequence[str]) -> int:
    """Returns the length of the longest end of a text that is a proper start of a marker."""
    most = min(len(text), max(map(len, markers)) - 1)
    sizes = range(most, 0, -1)
    return next((size for size in sizes if any(each.startswith(text[-size:]) for each in markers)), 0)
