"""What a rule of acceptance decides: the token after one node that the target has seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from speculative_engine.tree.token_tree import Node


@dataclass(frozen=True, slots=True)
class Visit:
    """A node on the committed path, with what the target says comes after it."""

    node: Node
    verified: Sequence[Node]
    """Its children that went through the target in this step, in the order they were drafted."""
    drawn: int
    """A token drawn from the target's distribution."""
    probabilities: Callable[[], np.ndarray]
    """The target's distribution, after temperature and filters: [V] float64, the caller's own copy."""


class Rule(Protocol):
    """Decides token by token. The walk goes on while what it decides is a verified child."""

    def token(self, visit: Visit) -> int:
        """The token to commit after the visited node."""
