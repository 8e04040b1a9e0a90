"""Text up to a marker, in pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence

WHITE_SPACE = re.compile(r"\s*")


class TextUntil:
    """Passes a text on until one of several markers comes, holding back what may still be the start of one."""

    def __init__(self, *markers: str) -> None:
        """Starts before the text."""
        self._markers = markers
        self._marker = re.compile("|".join(map(re.escape, markers)))
        self._longest = max(map(len, markers))
        self._held = ""
        """The end of the text so far, which may be the start of a marker."""
        self.found: str | None = None
        """The marker that came."""

    def push(self, text: str, at: int = 0) -> tuple[str, int]:
        """Returns the text that became final, and the index behind the marker if it came, else behind `text`.

        at: index in `text` from which it counts.
        """
        before = ""
        if self._held:
            # Any marker that begins in what is held back ends in the seam; more text would be copied with each piece.
            held, self._held = self._held, ""
            seam = held + text[at : at + self._longest - 1]
            match = self._marker.search(seam)
            if match is not None and match.start() < len(held):
                self.found = match[0]
                return seam[: match.start()], at + match.end() - len(held)
            if len(seam) == len(held) + len(text) - at:  # all there is, so that a marker may still be incomplete
                end = len(seam) - overlap(seam, self._markers)
                if end < len(held):
                    self._held = seam[end:]
                    return seam[:end], len(text)
            before = held
        match = self._marker.search(text, at)
        if match is not None:
            self.found = match[0]
            return before + text[at : match.start()], match.end()
        end = len(text) - overlap(text[max(at, len(text) - self._longest) :], self._markers)
        self._held = text[end:]
        return before + text[at:end], len(text)

    def hold(self, text: str) -> None:
        """Puts a text before the next piece."""
        self._held += text

    def rest(self, *, cut: bool = False) -> str:
        """Returns the text held back, at the end. cut: whether the text was cut off there; what may be the start of a
        marker is then left out."""
        held, self._held = self._held, ""
        return held[: len(held) - overlap(held, self._markers)] if cut else held


class TrimmedText:
    """Holds back white space, which counts only if other text follows it."""

    def __init__(self, *, start: bool = False) -> None:
        """start: whether white space at the start of the text counts as well."""
        self._counts = start
        self._held: list[str] = []

    def push(self, text: str) -> str:
        """Returns the text that became final."""
        end = text.rstrip()
        if not end:
            if self._counts and text:
                self._held.append(text)
            return ""
        found = "".join([*self._held, end]) if self._counts else end.lstrip()
        self._held = [text[len(end) :]]
        self._counts = True
        return found

    def drop(self) -> None:
        """Forgets the white space held back, and that at the start of what follows."""
        self._held.clear()
        self._counts = False

    def rest(self) -> str:
        """Returns the white space held back, at the end."""
        held = "".join(self._held)
        self._held.clear()
        return held


def end_of(run: re.Pattern[str], text: str, at: int) -> int:
    """Returns the index behind a run of letters, which may be empty. run: a pattern that matches the empty text."""
    match = run.match(text, at)
    assert match is not None
    return match.end()


def overlap(text: str, markers: Sequence[str]) -> int:
    """Returns the length of the longest end of a text that is a proper start of a marker."""
    most = min(len(text), max(map(len, markers)) - 1)
    sizes = range(most, 0, -1)
    return next((size for size in sizes if any(each.startswith(text[-size:]) for each in markers)), 0)
