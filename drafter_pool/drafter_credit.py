"""What a drafter is told and asked for: little while it brings next to nothing."""

from __future__ import annotations

_LEAST = 4
"""Nodes: enough to go on measuring how often it is right, and to start anew when it is of use again."""
_REST = 8
"""Steps of which it is then told at once."""
_MEMORY = 8.0
"""Steps after which older ones have lost most of their weight."""
_LEAST_GAIN = 0.02
"""Accepted tokens a step and sequence: about what telling and reading cost, of a step."""


class DrafterCredit:
    """Reading a node costs the verifier some microseconds wherever it goes, and a message many more. From a drafter of
    no use, or one that is late, or under a load at which nothing drafted pays, dozens of nodes for each of many
    sequences in every step are a noticeable part of it."""

    def __init__(self) -> None:
        self._gain = 1.0
        self._accepted = 0

    def accepted(self, tokens: int) -> None:
        """A step has accepted so many of the drafter's tokens."""
        self._accepted += tokens

    def stepped(self, sequences: int) -> None:
        """A step is over that went on with so many sequences, at least one, that the drafter drafts for."""
        self._gain += (self._accepted / sequences - self._gain) / _MEMORY
        self._accepted = 0

    @property
    def max_tree_nodes(self) -> int | None:
        """Most live nodes of a tree; None: as many as the opening allows."""
        return _LEAST if self._gain < _LEAST_GAIN else None

    @property
    def steps_at_once(self) -> int:
        """Of how many steps the drafter is told together."""
        return _REST if self._gain < _LEAST_GAIN else 1
