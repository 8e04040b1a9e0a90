"""Probes: rows that drafters have computed in the target's passes in order to learn from the target's answers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from draftwire_core.engine.drafters.drafter import Drafter
from draftwire_core.engine.tree.token_tree import Node


@dataclass(frozen=True, slots=True)
class Probes:
    """Nodes to compute but not to verify. They hang from the tree's root, or from each other, but are not in the tree:
    whatever the target answers, none is accepted."""

    nodes: list[Node]
    """Parents before children."""
    asked: list[Node]
    """The nodes whose next token is asked for, in the order of `nodes`."""


NO_PROBES = Probes([], [])


@runtime_checkable
class ProbingDrafter(Drafter, Protocol):
    """A Drafter that learns from probes."""

    @property
    def least_rows(self) -> int:
        """The fewest probes that the drafter can learn from."""

    def probes(self, key: Hashable, root: Node, most_rows: int) -> Probes:
        """Returns the probes for the next pass, at most `most_rows`.

        root: the last committed token in the engine's tree. The drafter may not have received the latest commit yet.
        """

    def learn(self, key: Hashable, tokens: Sequence[int]) -> None:
        """Receives the target's token after each asked node of the last `probes`, -1 for none. Called before
        `commit`."""
