"""The figures of a run, printed as soon as they are there, so that a run that is ended leaves what it has found."""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from benchmarks.harness.results import plain, save

Figures = Mapping[str, object]


class _TerminatedError(BaseException):
    """Raised on SIGTERM; no part may take it for an error of its own."""


class FigureLog:
    """Prints figures, one a line, and keeps them; runs the parts of a benchmark, none of which ends the others."""

    def __init__(self, json_lines: bool) -> None:
        """json_lines: print JSON objects {"figure": name, "value": value} instead of text."""
        self.figures: dict[str, object] = {}
        self.failed: list[str] = []
        """Names of the parts that failed or took too long."""
        self._json = json_lines
        self._part = ""

    def add(self, figures: Figures) -> None:
        """Prints and keeps figures."""
        for name, value in figures.items():
            self.figures[name] = value
            line = json.dumps({"figure": name, "value": plain(value)}) if self._json else f"  {name}: {value}"
            print(line, flush=True)

    def run(self, part: str, seconds: float, work: Callable[[], Iterable[Figures]]) -> None:
        """Runs a part and adds its figures and its duration. An error, or its limit in seconds, becomes a figure.

        The limit takes effect when Python runs again: not within a call of a library.
        """
        self._part, started = part, time.monotonic()
        try:
            with _limit(seconds):
                for figures in work():
                    self.add(figures)
        except Exception as error:  # noqa: BLE001 - the parts after it may still find something
            self.failed.append(part)
            self.add({f"{part}: failed": f"{type(error).__name__}: {str(error)[:2000]}"})
        self.add({f"{part}: seconds in all": round(time.monotonic() - started, 1)})

    @contextmanager
    def saved(self, options: argparse.Namespace) -> Iterator[None]:
        """Saves the figures at the end of the context, as `options` say, also if an error or SIGTERM ends it, as that
        of `timeout`. Only for the main thread. Raises SystemExit on SIGTERM."""

        def end(number: int, frame: FrameType | None) -> None:
            raise _TerminatedError

        before = signal.signal(signal.SIGTERM, end)
        try:
            yield
        except _TerminatedError:
            where = f" in the part {self._part}" if self._part else ""
            self.add({"ended early": f"by SIGTERM{where}"})
            raise SystemExit(f"ended by SIGTERM{where}") from None
        finally:
            signal.signal(signal.SIGTERM, before)
            save(self.figures, options)


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
