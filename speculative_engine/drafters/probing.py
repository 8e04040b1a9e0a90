"""Drafters that have rows of their own computed in the target's passes, to learn what the target says there."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from speculative_engine.drafters.drafter import Drafter
from speculative_engine.tree.token_tree import Node


@dataclass(frozen=True, slots=True)
class Probes:
    """Nodes to compute and not to verify. They hang from the tree's root, or from each other, but the tree does not
    know them: whatever the target says, none is accepted."""

    nodes: list[Node]
    """Parents before children."""
    asked: list[Node]
    """Of these, in the same order, the ones whose next token is asked for."""


NO_PROBES = Probes([], [])


@runtime_checkable
class ProbingDrafter(Drafter, Protocol):
    """A Drafter that learns from probes."""

    @property
    def least_rows(self) -> int:
        """The fewest probes that it learns from."""

    def probes(self, key: Hashable, root: Node, most_rows: int) -> Probes:
        """What to compute in the next pass, at most so many rows.

        root: the last committed token in the engine's tree. What was committed last may not have been told yet.
        """

    def learn(self, key: Hashable, tokens: Sequence[int]) -> None:
        """What the target said after each asked node of the last `probes`, -1 for nothing. Called before `commit`."""
