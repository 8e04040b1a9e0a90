"""The interface of logits processors, which change the target's logits before a token is drawn.

With a token tree, one step computes logits after several texts: the committed one, and each path of nodes below it. An
editor changes each row by that row's own text alone, so a token is the same whether its row was part of a tree or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TreeRows:
    """The rows of one sequence in a step: the first follows the committed tokens, every other one a node."""

    parents: list[int]
    """Index of the row of each node's parent; -1 for the first row. Parents come before their children."""
    tokens: list[int]
    """The token of each row's node; -1 for the first row."""

    def __len__(self) -> int:
        return len(self.parents)

    def path(self, row: int) -> list[int]:
        """The tokens between the committed ones and the row's logits, oldest first."""
        path: list[int] = []
        while row > 0:
            path.append(self.tokens[row])
            row = self.parents[row]
        return path[::-1]


class LogitEditor(Protocol):
    """One kind of change to the logits of one sequence. Called by the engine's thread."""

    def prepare(self, rows: TreeRows) -> None:
        """Begins the work that does not need the logits, while the target computes them.

        `edit` of the same rows follows, or is skipped. Sequences are prepared one after the other.
        """

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """Changes logits [rows, V] float32 in place. May be repeated for the same committed tokens."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Appends committed tokens to the sequence."""
