"""The slowdown of the target's steps by a drafter that computes meanwhile, on the same cores, memory or device."""

from __future__ import annotations

_WINDOW = 64
"""Steps that a mean reflects."""
_LEAST_STEPS = 16
"""Steps of each kind that a comparison takes."""
_LEAST = 0.03
"""Slowdown below which none is seen. Steps differ by some per cent for other reasons."""
_LONGEST = 2.0
"""Multiple of the mean as which a step counts at most. A step that the machine held up says nothing."""
_SETTLING_STEPS = 8
"""Steps after its last message to the drafter that are not counted as steps without it: it finishes its tree."""


class _Mean:
    """A mean of the last steps. It begins with the median of the first ones, of which any may have been held up."""

    def __init__(self) -> None:
        self.count = 0
        self.value = 0.0
        self._first: list[float] = []

    def add(self, measured: float) -> None:
        self.count = min(self.count + 1, _WINDOW)
        if self.count <= _LEAST_STEPS:
            self._first.append(measured)
            self.value = sorted(self._first)[len(self._first) // 2]
        else:
            self.value += (min(measured, _LONGEST * self.value) - self.value) / self.count


class Interference:
    """Compares plain steps during which a drafter computes with those during which it does not."""

    def __init__(self) -> None:
        self._busy = _Mean()
        self._idle = _Mean()
        self._since = _SETTLING_STEPS
        """Steps since the drafter had something to do."""

    @property
    def share(self) -> float:
        """Share by which steps take longer while the drafter computes; 0 as long as it is not known."""
        if min(self._busy.count, self._idle.count) < _LEAST_STEPS:
            return 0.0
        share = self._busy.value / self._idle.value - 1.0
        return share if share >= _LEAST else 0.0

    def observe(self, slowness: float, *, busy: bool) -> None:
        """Counts a step. slowness: its seconds over those that the cost model, measured at load, gives a plain step; 0
        if it was no plain step. busy: whether the drafter has something to do."""
        self._since = 0 if busy else self._since + 1
        if slowness > 0:
            if busy:
                self._busy.add(slowness)
            elif self._since > _SETTLING_STEPS:
                self._idle.add(slowness)
