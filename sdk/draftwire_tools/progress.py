"""Progress of a long command: a line that changes on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

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


@contextmanager
def download(console: Console, name: str, source: str, size: int) -> Iterator[Callable[[int], None]]:
    """Yields ``advance(count)``, which shows how many bytes of a download have come: a bar on a terminal, elsewhere a
    line when it begins and then lines now and then. Nothing is shown before the first call.

    Args:
        console: where to show it.
        name: what is downloaded.
        source: where it comes from.
        size: bytes of all.
    """
    columns = (TextColumn("{task.description}"), BarColumn(20), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, TimeRemainingColumn(), console=console)
    task = bar.add_task(f"fetching {name}, once", total=size)
    whole = size // 1_000_000
    told: float | None = None

    def advance(count: int) -> None:
        nonlocal told
        now = time.monotonic()
        if console.is_terminal:
            if told is None:
                bar.start()
            bar.update(task, completed=count)
        elif told is None:
            console.print(f"fetching {name} from {source}, once ({whole} MB) ...", soft_wrap=True)
        elif now - told < LINE_SECONDS:
            return
        else:
            console.print(f"fetching {name}: {count // 1_000_000} of {whole} MB", soft_wrap=True)
        told = now

    try:
        yield advance
        if told is not None:
            bar.update(task, completed=size)
    finally:
        if told is not None and console.is_terminal:
            bar.stop()


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
