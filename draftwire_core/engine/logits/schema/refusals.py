"""Parts of a JSON schema that are refused or left out, as no grammar can enforce them or the library refuses them."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

from draftwire_core.engine.logits.schema.references import LISTS, MAPS, subschemas


class Strictness(enum.Enum):
    """Whether parts that no grammar can enforce are refused or left out."""

    LENIENT = 0
    """Left out: the reader of the value checks it."""
    USUAL = 1
    """Refused, except for formats and `uniqueItems`, which count as annotations."""
    STRICT = 2
    """Refused."""


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


def _is_count(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0 and value == int(value)


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


_COUNTS = ("minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength")
_SHAPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(MAPS, (lambda value: isinstance(value, dict), "an object")),
    **dict.fromkeys(LISTS, (lambda value: isinstance(value, list), "a list of schemas")),
    **dict.fromkeys(_COUNTS, (_is_count, "a whole number of at least 0")),
    "required": (_is_names, "a list of names"),
}


def check_shapes(schema: dict[str, Any], place: str) -> None:
    """Raises SchemaError for a keyword whose value is of another kind than the rewriting, and the library, expect."""
    for key, (fits, words) in _SHAPES.items():
        if key in schema and not fits(schema[key]):
            raise SchemaError(inside(place, key), f"must be {words}")


def with_whole_counts(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema of the right shapes whose counts are integers: 2.0 is one, which the library does not take."""
    return schema | {key: int(schema[key]) for key in _COUNTS if isinstance(schema.get(key), float)}


OF_ROOT = ("$schema", "$id", "$defs", "definitions", "x-guidance", "x-draftwire")
"""Keywords of a root that stay there when the rest of it moves."""
_MOST_TRIES = 200
"""Most parts of a schema that are tried alone to find its fault."""


def fault_of(schema: dict[str, Any], accepts: Callable[[dict[str, Any]], str]) -> tuple[str, str]:
    """Returns the innermost part of a schema that the library refuses: its place and the reason; empty texts if the
    fault is of no part alone. accepts: returns the error of a part, or an empty text."""
    shared = {key: schema[key] for key in OF_ROOT if key in schema}
    place, reason, part = "", "", schema
    tries = 0
    searching = True
    while searching:
        searching = False
        for at, each in subschemas(part, place):
            tries += 1
            if not isinstance(each, dict) or tries > _MOST_TRIES:
                continue
            told = accepts(shared | each)
            if told and "Pointer" not in told:
                place, reason, part, searching = at, told, each, True
                break
    return place, reason
