"""What a drafter is told and asked for: little while none of its nodes is worth verifying."""

from __future__ import annotations

_LEAST = 4
"""Enough to go on measuring how often it is right, and to start anew when it is of use again."""
_PATIENCE = 32
"""Steps without a verified node."""
_REST = 8
"""Steps of whose verdicts it is then told at once."""


class DrafterCredit:
    """Reading a node costs the verifier some microseconds wherever it goes, and a message many more. From a drafter of
    no use, or under a load at which nothing drafted pays, dozens of nodes for each of many sequences in every step are
    a noticeable part of it."""

    def __init__(self) -> None:
        self._steps = 0

    def stepped(self) -> None:
        """A step went on with a sequence that the drafter drafts for."""
        self._steps += 1

    def verified(self) -> None:
        """A step has verified a node of the drafter."""
        self._steps = 0

    @property
    def max_tree_nodes(self) -> int | None:
        """Most live nodes of a tree; None: as many as the opening allows."""
        return _LEAST if self._steps >= _PATIENCE else None

    @property
    def steps_at_once(self) -> int:
        """Of how many steps the drafter is told together."""
        return _REST if self._steps >= _PATIENCE else 1
