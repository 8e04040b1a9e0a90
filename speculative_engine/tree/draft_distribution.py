"""What a node's children were drawn from: the drafter's distribution after the node, cut to its likeliest tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MOST_TOKENS = 256
"""Most tokens of one distribution."""


@dataclass(frozen=True, slots=True)
class DraftDistribution:
    """Tokens, each once, and their probabilities: above 0, and 1 in sum but for rounding."""

    token_ids: Sequence[int]
    probabilities: Sequence[float]

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens [n] int64 and their probabilities [n] float64, which the caller may change."""
        return np.array(self.token_ids, dtype=np.int64), np.array(self.probabilities, dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Draws:
    """A node's children that were drawn, without replacement."""

    tokens: tuple[int, ...]
    """In the order they were drawn."""
    distribution: DraftDistribution
