"""c(n) of an engine that cannot be asked for it: learned from its steps."""

from __future__ import annotations

import math

from speculative_engine.planning.running_mean import RunningMean
from speculative_engine.planning.step_cost import StepCost

_WEIGHT = 0.1
"""Weight of a step in the running means."""
_EXACT = 16
"""Steps of up to so many rows are told apart; larger ones by powers of two."""
_MOST_ROWS = 4096
_MEMORY = 200
"""Steps after which a length that was not met again is forgotten: one that was slow once, as the first of its kind may
be, would else never be tried again."""
_GUESS = 0.02
"""Seconds of a step, before the first one."""


class LearnedCost:
    """Times of steps by their number of rows, in running means."""

    def __init__(self) -> None:
        self._seconds: dict[int, RunningMean] = {}
        self._met: dict[int, int] = {}
        """Number of the last step of so many rows."""
        self._steps = 0
        self._curve = StepCost([1], [_GUESS])

    def observe(self, rows: int, seconds: float) -> None:
        """Take in a step of so many rows, at least one, that took so long. Longer ones than are ever planned, as those
        of prompts are, do not count."""
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
        """What is known: a length that was never met is taken to cost what its neighbours say, and is then measured."""
        return self._curve
