"""The newest traffic for training, with a held-out part for measuring."""

from __future__ import annotations

from collections import deque

from draft_training.data.example import Example

_HELD_OUT_EVERY = 5
_LEAST_HELD_OUT = 8


class ReplaySet:
    """A bounded set of examples; the oldest are dropped first."""

    def __init__(self, most: int):
        """Creates an empty set. most: examples kept for training."""
        self.learned: deque[Example] = deque(maxlen=most)
        self.held_out: deque[Example] = deque(maxlen=max(_LEAST_HELD_OUT, most // _HELD_OUT_EVERY))
        self._added = 0

    def add(self, example: Example) -> None:
        """Adds an example; every fifth is held out, beginning with the first."""
        (self.learned if self._added % _HELD_OUT_EVERY else self.held_out).append(example)
        self._added += 1
