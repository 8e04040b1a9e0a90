"""Where a sequence may go on from: places in texts that are known already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Text(Protocol):
    """Tokens that were seen before."""

    def following(self, where: int) -> Iterable[tuple[int, float, int]]:
        """What was seen next at a place: each token, its share of the times, and the place after it."""


class Place(NamedTuple):
    """A place in a text that a sequence may go on from."""

    length: int
    """Tokens before it that agree with the last ones of the sequence."""
    text: Text
    where: int


class Lookup(Protocol):
    """Finds one sequence's places. Its work for a token is bounded, whatever the length of the sequence."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Take in the sequence's next tokens, prompt and output alike."""

    def places(self) -> Sequence[Place]:
        """Where the sequence may go on from; the longest agreement first, and so few that all can be looked at."""
