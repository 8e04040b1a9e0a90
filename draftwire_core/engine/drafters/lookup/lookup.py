"""The lookup interface: places in known texts from which a sequence may continue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol


class Text(Protocol):
    """A text or a collection of texts seen before."""

    def following(self, where: int) -> Iterable[tuple[int, float, int]]:
        """Returns the tokens seen next at a place: each token, its relative frequency, and the place after it."""


class Place(NamedTuple):
    """A place in a text from which a sequence may continue."""

    length: int
    """Number of tokens before it that match the sequence's last ones."""
    text: Text
    where: int


class Lookup(Protocol):
    """Finds the places for one sequence. Its work per token is bounded, whatever the length of the sequence."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds the sequence's next tokens, prompt and output alike."""

    def places(self) -> Sequence[Place]:
        """Returns places from which the sequence may continue, longest match first, few enough to examine all of
        them."""
