"""The kinds of value that keywords of a JSON schema must have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftwire_core.engine.logits.schema.references import LISTS, MAPS
from draftwire_core.engine.logits.schema.refusals import SchemaError, inside


def _is_count(value: Any) -> bool:
    return type(value) in (int, float) and value >= 0 and value == int(value)


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
