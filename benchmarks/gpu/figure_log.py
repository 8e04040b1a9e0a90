"""The figures of a run, printed as soon as they are there, so that a run that is ended leaves what it has found."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from benchmarks.harness.results import plain

Figures = Mapping[str, object]


class FigureLog:
    """Prints figures, one a line, and keeps them; runs the parts of a benchmark, none of which ends the others."""

    def __init__(self, json_lines: bool) -> None:
        """json_lines: print JSON objects {"figure": name, "value": value} instead of text."""
        self.figures: dict[str, object] = {}
        self.failed: list[str] = []
        """Names of the parts that failed or took too long."""
        self._json = json_lines

    def add(self, figures: Figures) -> None:
        """Prints and keeps figures."""
        for name, value in figures.items():
            self.figures[name] = value
            line = json.dumps({"figure": name, "value": plain(value)}) if self._json else f"  {name}: {value}"
            print(line, flush=True)

    def run(self, part: str, seconds: float, work: Callable[[], Iterable[Figures]]) -> None:
        """Runs a part and adds its figures. An error, or its limit in seconds, becomes a figure of its own.

        The limit takes effect when Python runs again: not within a call of a library.
        """
        try:
            with _limit(seconds):
                for figures in work():
                    self.add(figures)
        except Exception as error:  # noqa: BLE001 - the parts after it may still find something
            self.failed.append(part)
            self.add({f"{part}: failed": f"{type(error).__name__}: {str(error)[:2000]}"})


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raises TimeoutError within the context after a time. Only for the main thread."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
