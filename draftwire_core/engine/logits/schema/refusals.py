"""Refusal or omission of the parts of a JSON schema that no grammar can enforce."""

from __future__ import annotations

import enum


class Strictness(enum.Enum):
    """Whether parts that no grammar can enforce are refused or left out."""

    LENIENT = 0
    """They are left out: the reader of the value checks it."""
    USUAL = 1
    """They are refused, except for formats and `uniqueItems`, which count as annotations."""
    STRICT = 2
    """They are refused."""


_MOST_DROPPED = 64


class SchemaError(ValueError):
    """Raised for a part of a schema that cannot be enforced; the message begins with its place."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}" if place else reason)


class Refusals:
    """Refuses what a request does not leave to others."""

    def __init__(self, strictness: Strictness) -> None:
        self.strictness = strictness
        self.dropped: list[str] = []
        """Places of the keywords that were dropped, each once; at most 64."""

    def refuse(self, place: str, keyword: str, reason: str) -> None:
        """Raises SchemaError for a keyword of the schema at a place, unless it may be dropped; then it is noted."""
        at = inside(place, keyword)
        if self.strictness is not Strictness.LENIENT:
            raise SchemaError(at, reason)
        if at not in self.dropped and len(self.dropped) < _MOST_DROPPED:
            self.dropped.append(at)


def inside(place: str, name: str) -> str:
    """Returns the place of a part of the schema at a place."""
    return f"{place}.{name}" if place else name
