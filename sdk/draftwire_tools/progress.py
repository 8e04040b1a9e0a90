"""Progress of a long command: a line that changes on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

LINE_SECONDS = 5.0
"""Least time between two lines of a count, if there is no terminal."""


@contextmanager
def status(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows which part begins. what: the work, in front of the part's name."""
    if console.is_terminal:
        with console.status(what) as shown:
            yield lambda part: shown.update(f"{what}: {part}")
    else:
        yield lambda part: console.print(f"{what}: {part}", soft_wrap=True)


class CountedLines:
    """Writes how many of many parts are done, at most every few seconds, and at the end."""

    def __init__(self, console: Console, what: str, total: int) -> None:
        self._console, self._what, self._total = console, what, total
        self._done = 0
        self._told = float("-inf")

    def advance(self) -> None:
        """Counts a part."""
        self._done += 1
        now = time.monotonic()
        if self._done == self._total or now - self._told >= LINE_SECONDS:
            self._told = now
            self._console.print(f"{self._what}: {self._done} of {self._total}", soft_wrap=True)
