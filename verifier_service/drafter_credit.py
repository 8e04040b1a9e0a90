"""How many nodes a drafter may have in a tree: few while none of them is worth verifying."""

from __future__ import annotations

_LEAST = 4
"""Enough to go on measuring how often it is right, and to start anew when it is of use again."""
_PATIENCE = 64
"""Verdicts, over all of its sequences, without a verified node."""


class DrafterCredit:
    """Reading a node costs the verifier some microseconds wherever it goes. From a drafter of no use, or under a load
    at which nothing drafted pays, dozens of them for each of many sequences are a noticeable part of a step."""

    def __init__(self) -> None:
        self._verdicts = 0
        """Since a node of the drafter was verified."""

    def count(self, verified: int) -> None:
        """Take in a verdict on a sequence of the drafter: how many of its nodes were verified."""
        self._verdicts = 0 if verified else self._verdicts + 1

    @property
    def max_tree_nodes(self) -> int | None:
        """Most live nodes of a tree; None: as many as the opening allows."""
        return _LEAST if self._verdicts >= _PATIENCE else None
