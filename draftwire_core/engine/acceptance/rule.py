"""The interface of an acceptance rule: which verified nodes are accepted, and which tokens are committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from torch import Tensor

from draftwire_core.engine.sampling.distributions import probabilities
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.sampling.sampling_params import SamplingParams
from draftwire_core.engine.tree.token_tree import Node


class LogitRows(Protocol):
    """Rows of logits, which are looked up when a rule reads them: most steps read none."""

    @property
    def logits(self) -> Tensor:
        """The logits, [1 + len(nodes), V] or more rows."""


class VerifiedTree(NamedTuple):
    """One sequence's part of a step, after the target's pass."""

    root: Node
    """The last committed token."""
    nodes: list[Node]
    """The verified nodes, parents before children, without the root."""
    drawn: list[int]
    """The target's token after the root, then after each node; -1 where the logits were bad."""
    on_path: list[bool] | None
    """Whether the root, and each node, is on the path of the drawn tokens; None unless the device found the path."""
    sampling: SamplingParams
    """The target's sampling parameters for this sequence."""
    rows: LogitRows
    """The rows that the tokens were drawn from."""

    def probabilities(self, row: int) -> np.ndarray:
        """Computes the target's distribution after the root (row 0) or a node (its index + 1): [V] float64.

        Temperature and filters are applied.
        """
        position = (self.nodes[row - 1] if row else self.root).position + 1
        logits = self.rows.logits
        batch = SamplingBatch.build([self.sampling], [position], logits.device)
        found: np.ndarray = probabilities(logits[row : row + 1], batch)[0]
        return found


@dataclass(frozen=True, slots=True)
class Visit:
    """A node on the committed path, with the target's distribution of the next token."""

    node: Node
    verified: Sequence[Node]
    """The node's children that were verified in this step, in the order they were drafted."""
    drawn: int
    """A token drawn from the target's distribution."""
    probabilities: Callable[[], np.ndarray]
    """Returns the target's distribution, after temperature and filters: [V] float64, a copy for the caller."""


class AcceptanceRule(ABC):
    """The acceptance rule of one request, called token by token or for a whole step.

    A rule implements `token`. The default `walk` is built on it; a rule may override it with a faster one.
    """

    draws = False
    """Whether drafters must sample their tokens and report the distribution they sampled from."""

    @abstractmethod
    def token(self, visit: Visit) -> int:
        """Returns the token to commit after the visited node."""

    def walk(self, tree: VerifiedTree) -> tuple[list[Node], list[int]]:
        """Returns the accepted nodes, in order, and all tokens to commit, the bonus token last.

        The walk continues while the token to commit is a verified child. A token of -1 (bad logits) ends it.
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
