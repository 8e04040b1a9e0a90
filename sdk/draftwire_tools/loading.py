"""Waiting for child processes, with a bar for each on a terminal and lines elsewhere."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from draftwire.cli.failure import Failure
from draftwire_tools.service import Job

START_SECONDS = 300.0
_LINE_SECONDS = 15.0
"""Interval of lines about what is not ready yet."""


def bars(console: Console) -> Progress:
    """Returns bars with a text and the elapsed time."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
    return Progress(*columns, console=console)


class Loading:
    """A bar for each child until it is ready; elsewhere than on a terminal, lines at its beginning, now and then, and
    when it is ready."""

    def __init__(self, console: Console, seconds: float = START_SECONDS) -> None:
        """Draws on a console. seconds: in which all children have to be ready."""
        self._console = console
        self._bars = bars(console)
        self._waiting: dict[Job, TaskID] = {}
        self._begun: dict[Job, tuple[str, float]] = {}
        """Text and time of the beginning of each child, for lines."""
        self._spare: set[Job] = set()
        self.given_up: set[Job] = set()
        """Children that have ended without being ready, and are not needed."""
        self._told = time.monotonic()
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def __enter__(self) -> Self:
        """Begins to draw."""
        if self._console.is_interactive:
            self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stops drawing."""
        if self._console.is_interactive:
            self._bars.stop()

    def show(self, child: Job, text: str, *, needed: bool = True) -> None:
        """Draws a bar for a child, or writes a line. needed: whether its end is a failure; else it is only told."""
        if not needed:
            self._spare.add(child)
        self._begun[child] = text, time.monotonic()
        if not self._console.is_interactive:
            self._console.print(f"{text} ...", soft_wrap=True, markup=False)
        self._waiting[child] = self._bars.add_task(text, total=None)

    def wait(self, *children: Job) -> None:
        """Waits until these are ready.

        Raises:
            Failure: any child has ended without being ready, or they take too long.
        """
        while not self._waiting.keys().isdisjoint(children):
            for child, task in list(self._waiting.items()):
                if self._has_ended(child):
                    self._bars.remove_task(task)
                    del self._waiting[child]
                elif child.is_ready():
                    self._bars.update(task, total=1, completed=1)
                    del self._waiting[child]
                    self._tell(child, "ready")
            if time.monotonic() > self._deadline:
                names = ", ".join(child.name for child in self._waiting)
                raise Failure(f"not ready after {self._seconds:.0f} s: {names}")
            if time.monotonic() - self._told > _LINE_SECONDS:
                for child in self._waiting:
                    self._tell(child, "not ready yet")
            time.sleep(0.05)

    def _has_ended(self, child: Job) -> bool:
        """Whether a child that is not needed has ended; says why."""
        if child not in self._spare or child.ended is None:
            return False
        self.given_up.add(child)
        why = child.failure(child.ended)
        self._console.print(f"{why}\nserving without it", soft_wrap=True, markup=False)
        return True

    def _tell(self, child: Job, state: str) -> None:
        """Writes how far a child is, if there are no bars."""
        self._told = time.monotonic()
        text, begun = self._begun[child]
        if not self._console.is_interactive:
            self._console.print(f"{text}: {state} after {self._told - begun:.0f} s", soft_wrap=True, markup=False)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handles a signal by ending the command as Ctrl-C does, so that its child processes end with it."""
    raise KeyboardInterrupt


def handle_signals() -> dict[int, Any]:
    """Has SIGTERM and the loss of the terminal (SIGHUP) end the command as Ctrl-C does. A SIGHUP that is ignored, as by
    nohup, stays so. Returns the handlers until now, for `restore_signals`."""
    before: dict[int, Any] = {signal.SIGTERM: signal.signal(signal.SIGTERM, interrupt)}
    lost = getattr(signal, "SIGHUP", None)  # not on Windows
    if lost is not None and signal.getsignal(lost) != signal.SIG_IGN:
        before[lost] = signal.signal(lost, _interrupt_once)
    return before


def restore_signals(before: Mapping[int, Any]) -> None:
    """Gives signals the handlers that they had before `handle_signals`."""
    for number, handler in before.items():
        signal.signal(number, handler)


def _interrupt_once(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # both the system and the shell may send it; the end is not cut short
    raise KeyboardInterrupt
