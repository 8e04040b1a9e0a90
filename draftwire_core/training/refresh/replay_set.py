"""The newest traffic for training, with a held-out part for measuring."""

from __future__ import annotations

from collections import deque
from typing import Generic

from draftwire_core.training.refresh.learner import ExampleT

_HELD_OUT_EVERY = 5
_LEAST_HELD_OUT = 8


class ReplaySet(Generic[ExampleT]):
    """A bounded set of examples; the oldest are dropped first."""

    def __init__(self, most: int):
        """Creates an empty set. most: examples kept for training."""
        self.learned: deque[ExampleT] = deque(maxlen=most)
        self.held_out: deque[ExampleT] = deque(maxlen=max(_LEAST_HELD_OUT, most // _HELD_OUT_EVERY))
        self._added = 0

    def add(self, example: ExampleT) -> None:
        """Adds an example; every fifth is held out, beginning with the first."""
        (self.learned if self._added % _HELD_OUT_EVERY else self.held_out).append(example)
        self._added += 1
