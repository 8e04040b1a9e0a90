"""The contract of a rule of acceptance: which verified nodes are accepted, and which tokens are committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from speculative_engine.sampling.distributions import probabilities
from speculative_engine.sampling.sampling_batch import SamplingBatch
from speculative_engine.sampling.sampling_params import SamplingParams
from speculative_engine.tree.token_tree import Node


class VerifiedTree(NamedTuple):
    """A sequence's part of a step, after the target's pass."""

    root: Node
    """The last committed token."""
    nodes: list[Node]
    """The verified nodes, parents before children; not the root."""
    drawn: list[int]
    """The token that the target drew after the root, then after each node; -1 where the logits were bad."""
    on_path: list[bool] | None
    """Whether the root, and each node, is on the path that the drawn tokens lead along, where a device found it."""
    sampling: SamplingParams
    """How the target draws for the sequence."""
    logits: Tensor
    """The logits that the tokens were drawn from, [1 + len(nodes), V] or more rows."""

    def probabilities(self, row: int) -> np.ndarray:
        """Computes the target's distribution behind the root (row 0) or a node (its index + 1), after temperature and
        filters: [V] float64."""
        position = (self.nodes[row - 1] if row else self.root).position + 1
        batch = SamplingBatch.build([self.sampling], [position], self.logits.device)
        found: np.ndarray = probabilities(self.logits[row : row + 1], batch)[0]
        return found


@dataclass(frozen=True, slots=True)
class Visit:
    """A node on the committed path, with the target's view of the token after it."""

    node: Node
    verified: Sequence[Node]
    """The node's children that went through the target in this step, in the order they were drafted."""
    drawn: int
    """A token drawn from the target's distribution."""
    probabilities: Callable[[], np.ndarray]
    """The target's distribution, after temperature and filters: [V] float64, the caller's own copy."""


class AcceptanceRule(ABC):
    """A rule of acceptance of one request, asked token by token or for a whole step.

    A rule implements `token`. `walk` follows from it, and a rule overrides it where it has a shorter way.
    """

    draws = False
    """Whether drafters have to draw their tokens and name the distribution that they drew from."""

    @abstractmethod
    def token(self, visit: Visit) -> int:
        """Returns the token to commit after the visited node."""

    def walk(self, tree: VerifiedTree) -> tuple[list[Node], list[int]]:
        """Returns the accepted nodes, in order, and all tokens to commit, of which the bonus token is the last.

        The walk goes on while the token to commit is a verified child. A token of -1, of bad logits, ends it.
        """
        rows = {id(node): row for row, node in enumerate(tree.nodes, start=1)}
        node, row = tree.root, 0
        accepted: list[Node] = []
        tokens: list[int] = []
        while True:
            token = tree.drawn[row]
            if token >= 0:
                token = self.token(_visit(tree, node, row, rows))
            tokens.append(token)
            child = node.children.get(token)
            if child is None or id(child) not in rows:
                return accepted, tokens
            accepted.append(child)
            node, row = child, rows[id(child)]


def _visit(tree: VerifiedTree, node: Node, row: int, rows: dict[int, int]) -> Visit:
    verified = [child for child in node.children.values() if id(child) in rows]
    return Visit(node, verified, tree.drawn[row], lambda: tree.probabilities(row))
