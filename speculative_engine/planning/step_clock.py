"""Where the time of steps goes, part by part."""

from __future__ import annotations

import threading
import time
from typing import Literal, get_args

StepPart = Literal["plan", "layout", "forward", "sample", "walk", "rollback", "draft", "wire", "wait"]
"""What a thread that runs a model may be doing; the contract's `StepTimes` says what each one is."""


class StepClock:
    """Sums up seconds by part. Each moment belongs to the part entered last, so the parts leave nothing out.

    One thread at a time enters parts; any may read.
    """

    def __init__(self) -> None:
        self.steps = 0
        """Forward passes begun."""
        self.cpu_around_forward = 0.0
        """CPU seconds of the thread outside of forward passes, up to the last one that has begun."""
        self._seconds: dict[str, float] = dict.fromkeys(get_args(StepPart), 0.0)
        self._part: StepPart | None = None
        self._since = 0.0
        self._cpu_since: tuple[int, float] | None = None
        """The thread that a forward pass was in last, and its CPU seconds at the end of it."""

    def enter(self, part: StepPart | None) -> None:
        """What was being done ends, and `part` begins; None while there is nothing to do, which is not counted."""
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

    def seconds(self) -> dict[str, float]:
        """Seconds by part, without the one that has not ended."""
        return self._seconds.copy()
