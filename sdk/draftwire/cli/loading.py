"""Waiting for child processes, with a bar for each."""

from __future__ import annotations

import time
from types import FrameType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from draftwire.cli.failure import Failure
from draftwire.cli.service import Job

START_SECONDS = 300.0


def bars(console: Console) -> Progress:
    """Returns bars with a text and the elapsed time."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(20), TimeElapsedColumn())
    return Progress(*columns, console=console)


class Loading:
    """A bar for each child until it is ready."""

    def __init__(self, console: Console, seconds: float = START_SECONDS) -> None:
        """Draws on a console. seconds: in which all children have to be ready."""
        self._bars = bars(console)
        self._waiting: dict[Job, TaskID] = {}
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def __enter__(self) -> Self:
        """Begins to draw."""
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stops drawing."""
        self._bars.stop()

    def show(self, child: Job, text: str) -> None:
        """Draws a bar for a child."""
        self._waiting[child] = self._bars.add_task(text, total=None)

    def wait(self, *children: Job) -> None:
        """Waits until these are ready.

        Raises:
            Failure: any child has ended without being ready, or they take too long.
        """
        while not self._waiting.keys().isdisjoint(children):
            for child, task in list(self._waiting.items()):
                if child.is_ready():
                    self._bars.update(task, total=1, completed=1)
                    del self._waiting[child]
            if time.monotonic() > self._deadline:
                names = ", ".join(child.name for child in self._waiting)
                raise Failure(f"not ready after {self._seconds:.0f} s: {names}")
            time.sleep(0.05)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Handles a signal by ending the command as Ctrl-C does, so that its child processes end with it."""
    raise KeyboardInterrupt
