"""The traffic that a draft model learns from: the newest of it, and some to measure on that it never learns."""

from __future__ import annotations

from collections import deque

from draft_training.data.example import Example

_HELD_OUT_EVERY = 5
_LEAST_HELD_OUT = 8


class ReplaySet:
    """Bounded; what is oldest goes first."""

    def __init__(self, most: int):
        """most: examples to learn from."""
        self.learned: deque[Example] = deque(maxlen=most)
        self.held_out: deque[Example] = deque(maxlen=max(_LEAST_HELD_OUT, most // _HELD_OUT_EVERY))
        self._added = 0

    def add(self, example: Example) -> None:
        """Adds an example: each fifth is held out, the first among them."""
        (self.learned if self._added % _HELD_OUT_EVERY else self.held_out).append(example)
        self._added += 1
