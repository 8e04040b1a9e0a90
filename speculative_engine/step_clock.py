"""Where the time of steps goes, part by part."""

from __future__ import annotations

import time
from typing import Literal, get_args

StepPart = Literal["plan", "layout", "forward", "sample", "walk", "rollback", "draft", "wire", "wait"]
"""What a thread that runs a model may be doing; the contract's `StepTimes` says what each one is."""


class StepClock:
    """Sums up seconds by part. Each moment belongs to the part entered last, so the parts leave nothing out.

    One thread enters parts; any may read.
    """

    def __init__(self) -> None:
        self.steps = 0
        """Forward passes begun."""
        self._seconds: dict[str, float] = dict.fromkeys(get_args(StepPart), 0.0)
        self._part: StepPart | None = None
        self._since = 0.0

    def enter(self, part: StepPart | None) -> None:
        """What was being done ends, and `part` begins; None while there is nothing to do, which is not counted."""
        now = time.perf_counter()
        if self._part is not None:
            self._seconds[self._part] += now - self._since
        if part == "forward":
            self.steps += 1
        self._part, self._since = part, now

    def seconds(self) -> dict[str, float]:
        """Seconds by part, without the one that has not ended."""
        return self._seconds.copy()
