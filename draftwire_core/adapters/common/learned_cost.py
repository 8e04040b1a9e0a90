"""The step cost c(n) of an engine that does not report it, learned from its steps."""

from __future__ import annotations

import math

from draftwire_core.engine.planning.running_mean import RunningMean
from draftwire_core.engine.planning.step_cost import StepCost

_WEIGHT = 0.1
"""Weight of a step in the running means."""
_EXACT = 16
"""Largest number of rows with a measurement of its own; larger steps are grouped by powers of two."""
_MOST_ROWS = 4096
_MEMORY = 200
"""Steps after which a number of rows that has not recurred is forgotten. Otherwise a size that was slow once, as the
first of its kind may be, would never be tried again."""
_GUESS = 0.02
"""Assumed seconds of a step before the first measurement."""


class LearnedCost:
    """Running averages of step times by number of rows."""

    def __init__(self) -> None:
        self._seconds: dict[int, RunningMean] = {}
        self._met: dict[int, int] = {}
        """Number of the last step by number of rows."""
        self._steps = 0
        self._curve = StepCost([1], [_GUESS])

    def observe(self, rows: int, seconds: float) -> None:
        """Adds the time of a step with at least one row. Steps larger than are ever planned, such as those of prompts,
        are ignored."""
        if not 1 <= rows <= _MOST_ROWS or not seconds > 0:
            return
        place = rows if rows <= _EXACT else 1 << round(math.log2(rows))
        if place not in self._seconds:
            self._seconds[place] = RunningMean(weight=_WEIGHT)
        self._seconds[place].add(seconds)
        self._steps += 1
        self._met[place] = self._steps
        for old in [each for each, met in self._met.items() if met < self._steps - _MEMORY]:
            del self._met[old], self._seconds[old]
        ordered = sorted(self._seconds)
        self._curve = StepCost(ordered, [self._seconds[each].value for each in ordered])

    @property
    def curve(self) -> StepCost:
        """The learned cost curve. Unmeasured sizes are interpolated from their neighbours until they are measured."""
        return self._curve
