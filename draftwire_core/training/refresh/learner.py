"""A learner that keeps up with the traffic: a draft model, or a head on the target's hidden states."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

ExampleT = TypeVar("ExampleT")


class Learner(Protocol[ExampleT]):
    """A drafter in training, on examples of its own kind."""

    source: str
    """The checkpoint it began with."""
    tokenizer_sha256: str
    """Hash of its tokenizer, which must be the target's."""
    context_length: int
    """Longest text to learn from."""

    def example(self, prompt: list[int], output: list[int]) -> ExampleT | None:
        """Returns what a finished request teaches; None if it cannot be had now. Raises DraftwireError."""

    def learn(
        self, learned: Sequence[ExampleT], held_out: Sequence[ExampleT], seed: int, tell: Callable[[str], None]
    ) -> bool:
        """Trains; returns whether held-out acceptance is better than before. If not, the weights are restored."""

    def write(self, directory: Path) -> None:
        """Writes a checkpoint for a drafter service; an existing one is replaced once the new one is complete."""

    def go_back(self) -> None:
        """Restores the weights from before the last training."""


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
