"""The cost model c(n): the time of one forward pass by its number of rows, measured at load and kept up to date.

The cost of a row also depends on the number of positions it attends to, and the cost of a sequence on the number it has
to read, once for all its rows. Both are assumed to equal the recent average per row.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from draftwire_core.engine.planning.running_mean import RunningMean

_WEIGHT = 0.1
"""Weight of a step in the running means."""
_PLAIN_WEIGHT = 0.25
"""Weight of a comparison of a plain step with the step before or after it. There are few of them."""
_PLAIN_DRIFT = 0.001
"""Weight at which each plain step after another one lets what such comparisons showed be forgotten. Where they kept
nodes from being tried at all, nothing else would correct them."""
_LEAST_PLAIN = 0.4
"""Least time of a plain step over what the curve says. A comparison with a step that the machine held up says less."""
_STALE = 48
"""Steps with nodes after which a plain one is due."""
_STRETCH = 3.0
"""How many times as long a step may become through the prompts computed in it."""
_LEAST_PROMPT_ROWS = 16
"""Fewest prompt tokens computed per step, whatever the delay."""


class StepCost:
    """A piecewise linear curve through measured points, plus the cost of attention, scaled by recent steps."""

    def __init__(
        self,
        rows: Sequence[int],
        seconds: Sequence[float],
        seconds_per_seen: float = 0.0,
        context: float = 0.0,
        seconds_per_read: float = 0.0,
    ):
        """rows: row counts, ascending. seconds: time of a step of each row count that attends to nothing.
        seconds_per_seen: added time per position that a row attends to. context: initial estimate of the positions per
        row. seconds_per_read: added time per position of each sequence after the first.

        Raises ValueError if rows and seconds do not match."""
        if not rows or len(rows) != len(seconds) or list(rows) != sorted(set(rows)) or min(seconds) <= 0:
            raise ValueError("a cost curve needs ascending row counts with a positive time each")
        self._rows = list(rows)
        # More rows never cost less, and a busy machine only adds time: a faster measurement with more rows bounds the
        # cost of fewer rows.
        self._seconds = [min(seconds[index:]) for index in range(len(seconds))]
        self._seconds_per_seen = seconds_per_seen
        self._seconds_per_read = seconds_per_read
        self._context = RunningMean(context, weight=_WEIGHT, floor=math.inf)
        """Positions that a row sees."""
        self._scale = RunningMean(1.0, weight=_WEIGHT)
        """Seconds of a step over those of the curve: a machine that was briefly busy says little about it."""
        self._plain = RunningMean(1.0, weight=_PLAIN_WEIGHT)
        """Seconds of plain steps over those of the curve, by the scale of steps with nodes. Only successive steps are
        compared, so that it is not the machine's speed that changed between them."""
        self._before: tuple[bool, float] | None = None
        """Of the step before: whether it was plain, and its seconds over those of the curve."""
        self._without_plain = 0
        """Steps since the last plain one."""
        self._on_curve: dict[int, float] = {}
        """The curve by row count. The curve never changes, and each step looks up a few dozen of its points."""

    def points(self) -> list[tuple[int, float]]:
        """Returns the curve's points: row counts, each with the expected seconds of such a step over one sequence."""
        return [(rows, self.seconds(rows)) for rows in self._rows]

    @property
    def plain_is_due(self) -> bool:
        """Whether the last plain step is so long ago that one is worth taking to measure its time."""
        return self._without_plain >= _STALE

    def seconds(self, rows: int, sequences: int = 1) -> float:
        """Expected time of a step of `rows` rows of so many sequences, in seconds. One row for each is a plain step."""
        # As `_unscaled`; a step asks for the seconds of some hundred numbers of rows.
        context, curve = self._context.value, self._on_curve.get(rows)
        if curve is None:
            curve = self._curve(rows)
        positions = self._seconds_per_seen * (rows * context) + self._seconds_per_read * ((sequences - 1) * context)
        seconds = self._scale.value * (curve + positions)
        return seconds * min(1.0, self._plain.value) if rows == sequences else seconds

    def added(self, rows: int, own: int, sequences: int = 1) -> float:
        """Returns the expected seconds that `own` of a step's rows have added to it."""
        return self.seconds(rows, sequences) - self.seconds(max(1, rows - own), sequences) if own else 0.0

    def node_tokens(self, rows: int, nodes: int, sequences: int) -> float:
        """Returns the price in tokens of each of the `nodes` among a step's rows.

        The price is the number of tokens that plain decoding of this many sequences, at least one, generates in the
        same time.
        """
        return self.added(rows, nodes, sequences) / max(1, nodes) * sequences / self.seconds(sequences, sequences)

    def prompt_rows(self, waiting: int, most: int) -> int:
        """Returns how many prompt tokens, at most `most`, to compute in a step with `waiting` rows of other sequences.

        The prompts may make the step at most three times as long for those sequences, but always get a few rows.
        """
        if not waiting:
            return most
        return max(self.further_rows(waiting, _STRETCH, most, waiting), min(_LEAST_PROMPT_ROWS, most))

    def further_rows(self, rows: int, stretch: float, most: int, sequences: int = 1) -> int:
        """Returns how many rows, at most `most`, can join a step of `rows` rows without exceeding `stretch` times its
        time."""
        return self.rows_within(stretch * self.seconds(rows, sequences), rows, most, sequences)

    def rows_within(self, seconds: float, rows: int, most: int, sequences: int) -> int:
        """Returns how many rows, at most `most`, can join a step of `rows` rows without exceeding a time."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            if self.seconds(rows + middle, sequences) <= seconds:
                low = middle
            else:
                high = middle - 1
        return low

    def worthwhile_rows(self, rows: int, most: int, sequences: int, tokens: float, apart: float) -> int:
        """Returns the number of further rows, at most `most`, beyond which not even nodes that are certain raise the
        tokens per second of a step of `rows` rows.

        tokens: number that the step commits without them. apart: seconds of the step that are not counted. Nodes come
        likeliest first, so uncertain ones do not raise it either. From the first node on the time is linear between the
        curve's points, so it is enough to look at these.
        """
        points = {0, min(1, most), most, *(each - rows for each in self._rows if rows < each < rows + most)}
        return max(points, key=lambda count: (tokens + count) / (self.seconds(rows + count, sequences) - apart))

    def observe(self, rows: int, seconds: float, seen: int = 0, sequences: int = 1) -> float:
        """Adds a measured step of so many sequences. seen: total positions that its rows attended to. Returns its
        seconds over those of the curve, as it was measured at load."""
        found = seconds / self._unscaled(rows, seen, (sequences - 1) * seen / rows)
        plain, before = rows == sequences, self._before
        if before is not None and before[0] != plain and found and before[1]:
            compared = found / before[1] if plain else before[1] / found
            self._plain.add(max(compared, _LEAST_PLAIN))
        elif plain:
            self._plain.value += _PLAIN_DRIFT * (1.0 - self._plain.value)
        self._scale.add(found / min(1.0, self._plain.value) if plain else found)
        self._before = plain, found
        self._without_plain = 0 if plain else self._without_plain + 1
        self._context.add(seen / rows)
        return found

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
