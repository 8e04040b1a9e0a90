"""c(n): the time of one forward pass by its number of rows, measured at load and kept up to date.

What a row costs depends on how many positions it sees, too, and what a sequence costs on how many it has to read: rows
of one sequence read them together. Those are taken to be as many as rows have seen lately.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from speculative_engine.planning.running_mean import RunningMean

_WEIGHT = 0.1
"""Weight of a step in the running means."""
_STRETCH = 3.0
"""How many times as long a step may take for the prompts that are computed in it."""
_LEAST_PROMPT_ROWS = 16
"""Prompts get on by so many tokens a step whatever it takes."""


class StepCost:
    """A piecewise linear curve through measured points, and what attention adds, scaled by how steps have gone
    lately."""

    def __init__(
        self,
        rows: Sequence[int],
        seconds: Sequence[float],
        seconds_per_seen: float = 0.0,
        context: float = 0.0,
        seconds_per_read: float = 0.0,
    ):
        """rows: ascending; seconds: the time of a step of so many rows that see nothing; seconds_per_seen: what each
        position adds that a row sees; context: how many each is taken to see at first; seconds_per_read: what each
        position adds that a further sequence than the first one has.

        Raises ValueError if they do not match."""
        if not rows or len(rows) != len(seconds) or list(rows) != sorted(set(rows)) or min(seconds) <= 0:
            raise ValueError("a cost curve needs ascending row counts with a positive time each")
        self._rows = list(rows)
        # More rows never cost less, and a busy machine only adds to a measurement: where more rows were faster, they
        # say what fewer take at most.
        self._seconds = [min(seconds[index:]) for index in range(len(seconds))]
        self._seconds_per_seen = seconds_per_seen
        self._seconds_per_read = seconds_per_read
        self._context = RunningMean(context, weight=_WEIGHT, floor=math.inf)
        """Positions that a row sees."""
        self._scale = RunningMean(1.0, weight=_WEIGHT)
        """Seconds of a step over those of the curve: a machine that was briefly busy says little about it."""
        self._on_curve: dict[int, float] = {}
        """By rows: the curve does not change, and each step asks for some dozen of its points."""

    def points(self) -> list[tuple[int, float]]:
        """The curve's points: rows, and the expected time in seconds of a step of so many of one sequence."""
        return [(rows, self.seconds(rows)) for rows in self._rows]

    def seconds(self, rows: int, sequences: int = 1) -> float:
        """Expected time of a step of `rows` rows of so many sequences, in seconds."""
        context = self._context.value
        return self._scale.value * self._unscaled(rows, rows * context, (sequences - 1) * context)

    def added(self, rows: int, own: int) -> float:
        """Expected seconds that `own` of a step's rows have added to it."""
        return self.seconds(rows) - self.seconds(max(1, rows - own)) if own else 0.0

    def node_tokens(self, rows: int, nodes: int, sequences: int) -> float:
        """What each of the `nodes` among a step's rows takes, in tokens: so many are generated in that time without,
        by so many sequences, at least one."""
        return self.added(rows, nodes) / max(1, nodes) * sequences / self.seconds(sequences, sequences)

    def prompt_rows(self, waiting: int, most: int) -> int:
        """How many tokens of prompts, at most `most`, to compute in a step with `waiting` rows of other sequences.

        Those have to wait for as long as it takes: at most three times as long as without, but for a few rows by which
        prompts always get on.
        """
        if not waiting:
            return most
        return max(self.further_rows(waiting, _STRETCH, most, waiting), min(_LEAST_PROMPT_ROWS, most))

    def further_rows(self, rows: int, stretch: float, most: int, sequences: int = 1) -> int:
        """How many rows, at most `most`, a step of `rows` rows of so many sequences can take on and be no more than
        `stretch` times as long."""
        limit = stretch * self.seconds(rows, sequences)
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(rows + middle, sequences) <= limit:
                low = middle
            else:
                high = middle - 1
        return low

    def observe(self, rows: int, seconds: float, seen: int = 0, sequences: int = 1) -> None:
        """Take in a measured step of so many sequences. seen: positions that its rows have seen, all together."""
        self._scale.add(seconds / self._unscaled(rows, seen, (sequences - 1) * seen / rows))
        self._context.add(seen / rows)

    def _unscaled(self, rows: int, seen: float, read: float) -> float:
        return self._curve(rows) + self._seconds_per_seen * seen + self._seconds_per_read * read

    def _curve(self, rows: int) -> float:
        seconds = self._on_curve.get(rows)
        if seconds is None:
            seconds = self._on_curve[rows] = self._interpolated(rows)
        return seconds

    def _interpolated(self, rows: int) -> float:
        xs, ys = self._rows, self._seconds
        if len(xs) == 1:
            return ys[0]
        right = min(max(bisect.bisect_left(xs, rows), 1), len(xs) - 1)
        left = right - 1
        slope = (ys[right] - ys[left]) / (xs[right] - xs[left])
        return max(ys[left] + slope * (rows - xs[left]), ys[0])
