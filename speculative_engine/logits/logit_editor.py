"""What a request does to the target's logits before a token is drawn from them.

With a token tree, one step asks for logits after several texts: the committed one, and each path of nodes below it. An
editor changes each row by that row's own text alone, so a token is the same whether its row was one of a tree or the
only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class TreeRows:
    """Rows of one sequence in a step: the first follows its committed tokens, each other one a node below it."""

    parents: list[int]
    """Of each row the row that its node's parent has; -1 for the first row. Parents come before their children."""
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
    """One kind of change for one sequence. The engine's thread calls it."""

    def prepare(self, rows: TreeRows) -> None:
        """Begin with what does not need the logits: the target computes meanwhile. `edit` of the same rows follows, or
        never comes. Sequences that are to be edited are prepared one after the other."""

    def edit(self, logits: Tensor, rows: TreeRows) -> None:
        """Change logits [rows, V] float32 in place. May be done again for the same committed tokens."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Follow the sequence: these tokens were appended to it."""
