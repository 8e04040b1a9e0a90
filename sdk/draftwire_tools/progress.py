"""Progress of a long command: a line or a bar that changes on a terminal, lines elsewhere. A line ends with the time so
far and an estimate of the rest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

LINE_SECONDS = 5.0
"""Least time between two lines of a count, if there is no terminal."""

_OWN = {*vars(logging.makeLogRecord({})), "message", "taskName"}
"""Attributes that every event of a log has."""

Stage = Callable[[str, float], None]
"""Begins a stage of some work: the stage's name, and the share of the work that is done, 0 to 1."""
Say = Callable[[str], None]
"""Writes a line."""


class Pace:
    """The time that some work has taken, and an estimate of the rest. The work begins when this is made."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def of(self, done: float) -> str:
        """Returns both in words. done: share of the work that is done, 0 to 1."""
        taken = time.monotonic() - self._begun
        words = f"after {duration(taken)}"
        return f"{words}, about {duration(taken * (1 - done) / done)} left" if 0 < done < 1 else words


def duration(seconds: float) -> str:
    """Returns a time for people, in the unit that fits."""
    for most, unit, size in ((100, "s", 1), (6000, "min", 60)):
        if seconds < most:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} h"


@contextmanager
def status(console: Console, what: str, least_seconds: float = 0.0) -> Iterator[Stage]:
    """Yields a function that shows which stage begins.

    Args:
        console: where to show it.
        what: the work, in front of the stage's name.
        least_seconds: between two lines, if there is no terminal; a stage that begins earlier has none.
    """
    pace = Pace()
    told = float("-inf")

    def write(stage: str, done: float) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= least_seconds:
            told = now
            console.print(f"{what}: {stage} ({pace.of(done)})", soft_wrap=True, markup=False)

    if console.is_interactive:
        with console.status(what) as shown:
            yield lambda stage, done: shown.update(Text(f"{what}: {stage} ({pace.of(done)})"))
    else:
        yield write


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
    pace = Pace()
    told: float | None = None

    def advance(count: int) -> None:
        nonlocal told
        now = time.monotonic()
        if console.is_interactive:
            if told is None:
                bar.start()
            bar.update(task, completed=count)
        elif told is None:
            console.print(f"fetching {name} from {source}, once ({whole} MB) ...", soft_wrap=True)
        elif now - told < LINE_SECONDS:
            return
        else:
            done = pace.of(count / size if size else 0.0)
            console.print(f"fetching {name}: {count // 1_000_000} of {whole} MB ({done})", soft_wrap=True)
        told = now

    try:
        yield advance
        if told is not None:
            bar.update(task, completed=size)
    finally:
        if told is not None and console.is_interactive:
            bar.stop()


class LogLines(logging.Handler):
    """Writes a log's events as lines, with their fields: a part of a command that logs is then heard, too."""

    def __init__(self, say: Say, name: str) -> None:
        """say: writes a line. name: the logger, whose events of level INFO are written from now on, by this alone."""
        super().__init__(logging.INFO)
        self._say = say
        self._logger = logging.getLogger(name)
        self._logger.setLevel(logging.INFO)
        self._logger.handlers = [self]

    def close(self) -> None:
        """Writes no more events."""
        self._logger.removeHandler(self)
        super().close()

    def emit(self, record: logging.LogRecord) -> None:
        """Writes an event."""
        fields = {name: value for name, value in vars(record).items() if name not in _OWN}
        told = ", ".join(f"{name} {value}" for name, value in fields.items())
        self._say(f"{record.getMessage()}: {told}" if told else record.getMessage())


class CountedLines:
    """Writes how many of many parts are done, at most every few seconds, and at the end."""

    def __init__(self, say: Say, what: str, total: int) -> None:
        """say: writes a line. what: the work, in front of the count. total: number of parts."""
        self._say, self._what, self._total = say, what, total
        self._done = 0
        self._pace = Pace()
        self._told = float("-inf")

    def advance(self, count: int = 1) -> None:
        """Counts parts that are done."""
        self._done += count
        now = time.monotonic()
        if count and (self._done >= self._total or now - self._told >= LINE_SECONDS):
            self._told = now
            done = self._pace.of(self._done / self._total)
            self._say(f"{self._what}: {self._done} of {self._total} ({done})")
