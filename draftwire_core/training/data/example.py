"""Training examples: texts with the target's likeliest tokens at some of their positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
LogProbs = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Example:
    """A text with sparse distributions: at temperature 1, without filters."""

    tokens: Ids
    """The text, prompt and continuation."""
    first: int
    """Position of the first distribution. The distribution of position p is over its token, given all before it."""
    token_ids: Ids
    """The likeliest tokens, best first: [positions, top]."""
    log_probs: LogProbs
    """Natural log-probabilities of the tokens in the target: [positions, top]."""

    def check(self) -> Example:
        """Returns self; raises ValueError if the parts do not fit together."""
        positions = len(self.token_ids)
        if self.token_ids.ndim != 2 or self.token_ids.shape != self.log_probs.shape or not positions:
            raise ValueError("an example must have as many log-probabilities as tokens, for at least one position")
        if not 1 <= self.first <= self.first + positions - 1 <= len(self.tokens):
            raise ValueError(f"{positions} distributions from position {self.first} for {len(self.tokens)} tokens")
        return self

    @property
    def positions(self) -> int:
        """Number of distributions."""
        return len(self.token_ids)


def example_of(tokens: list[int], first: int, token_ids: list[list[int]], log_probs: list[list[float]]) -> Example:
    """Returns an example from lists."""
    return Example(
        np.array(tokens, np.int32), first, np.array(token_ids, np.int32), np.array(log_probs, np.float32)
    ).check()
