"""Splits the time of steps into parts."""

from __future__ import annotations

import threading
import time
from typing import Literal, get_args

StepPart = Literal["plan", "layout", "forward", "sample", "walk", "rollback", "draft", "wire", "wait"]
"""The parts of a step, for a thread that runs a model; the contract's `StepTimes` describes each."""


class StepClock:
    """Sums up seconds by part. Each moment belongs to the part entered last, so the parts cover all of the time.

    One thread at a time enters parts; any thread may read.
    """

    def __init__(self) -> None:
        self.steps = 0
        """Number of forward passes begun."""
        self.cpu_around_forward = 0.0
        """CPU seconds that the thread spent outside forward passes, up to the start of the last one."""
        self._seconds: dict[str, float] = dict.fromkeys(get_args(StepPart), 0.0)
        self._part: StepPart | None = None
        self._since = 0.0
        self._cpu_since: tuple[int, float] | None = None
        """The thread of the last forward pass, and its CPU seconds at the end of that pass."""

    def enter(self, part: StepPart | None) -> None:
        """Ends the current part and begins `part`; None means idle, which is not counted."""
        now = time.perf_counter()
        if self._part is not None:
            self._seconds[self._part] += now - self._since
        if part == "forward":
            self.steps += 1
            self._count_cpu()
        elif self._part == "forward":
            self._cpu_since = threading.get_ident(), time.thread_time()
        self._part, self._since = part, now

    def _count_cpu(self) -> None:
        if self._cpu_since is not None and self._cpu_since[0] == threading.get_ident():
            self.cpu_around_forward += time.thread_time() - self._cpu_since[1]

    @property
    def waited(self) -> float:
        """Seconds of the part "wait", without the part in progress."""
        return self._seconds["wait"]

    def seconds(self) -> dict[str, float]:
        """Returns the seconds by part, without the part in progress."""
        return self._seconds.copy()
