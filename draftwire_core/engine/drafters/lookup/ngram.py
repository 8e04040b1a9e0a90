"""Prompt lookup: a sequence is expected to continue as it did after the same tokens before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftwire_core.engine.drafters.lookup.lookup_drafter import LookupDrafter, Place
from draftwire_core.engine.drafters.lookup.ngram_index import NgramIndex
from draftwire_core.engine.errors import FieldError

_LONGEST = 64


@dataclass(frozen=True, slots=True)
class NgramOptions:
    """The match lengths of prompt lookup."""

    min: int = 2
    """Fewest matching tokens."""
    max: int = 8
    """Most tokens compared; longer matches count as equally good."""

    def __post_init__(self) -> None:
        if not 1 <= self.min <= _LONGEST:
            raise FieldError("min", f"must be from 1 to {_LONGEST}, got {self.min}")
        if not self.min <= self.max <= _LONGEST:
            raise FieldError("max", f"must be from min ({self.min}) to {_LONGEST}, got {self.max}")


class NgramLookup:
    """Finds the last tokens of one sequence in its own prompt and output."""

    def __init__(self, options: NgramOptions):
        self._index = NgramIndex(options.min)
        self._longest = options.max

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds the tokens to the index."""
        self._index.extend(tokens)

    def places(self) -> list[Place]:
        """Returns the places after earlier occurrences of the sequence's last tokens."""
        return self._index.find(self._index.tokens, self._longest)


def ngram_drafter(options: NgramOptions) -> LookupDrafter:
    """Makes the drafter `local:ngram`."""
    return LookupDrafter(lambda _: NgramLookup(options))
