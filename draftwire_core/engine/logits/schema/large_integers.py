"""Integers of a JSON schema that a float does not hold."""

from __future__ import annotations

import math
from typing import Any

from draftwire_core.engine.logits.schema.listed_values import EXACT
from draftwire_core.engine.logits.schema.refusals import Refusals, SchemaError, inside

_MOST_INTEGER = 9223372036854774784
"""Largest integer bound that the library takes."""
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


def with_exact_integers(schema: dict[str, Any], place: str, refusals: Refusals) -> dict[str, Any]:
    """Returns a schema whose integers the library keeps: those that it would change become bounds further inside."""
    for key in (*_LOWER, *_UPPER, "multipleOf"):
        value = schema.get(key)
        if isinstance(value, float):
            if not math.isfinite(value):
                raise SchemaError(inside(place, key), "is beyond the range of a float")
            value = int(value) if value.is_integer() else value
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) <= EXACT:
            continue
        if key == "multipleOf":
            refusals.refuse(place, key, "cannot be enforced beyond 2^53")
            del schema[key]
            continue
        # Inside of an excluded bound is the next integer, also for numbers with fractions: fewer are allowed then.
        inward = value + 1 if key == "exclusiveMinimum" else value - 1 if key == "exclusiveMaximum" else value
        kept: int | float | None = _kept_bound(inward, up=key in _LOWER)
        del schema[key]
        bound = "minimum" if key in _LOWER else "maximum"
        if kept is None:
            if (value > 0) == (key in _LOWER):
                refusals.refuse(place, key, f"leaves no integer that can be enforced, at most {_MOST_INTEGER}")
            continue
        other = schema.get(bound)
        if isinstance(other, int | float) and not isinstance(other, bool):
            kept = max(kept, other) if key in _LOWER else min(kept, other)
        schema[bound] = kept
    for key in ("const", "enum"):
        if key in schema and _has_large_integer(schema[key]):
            refusals.refuse(place, key, "has an integer beyond 2^53, which cannot be enforced")
            del schema[key]
    return schema


def _kept_bound(value: int, *, up: bool) -> int | None:
    """Returns the next integer from a bound inward that the library keeps; None beyond its range."""
    if abs(value) > _MOST_INTEGER:
        outward = (value < 0) == up
        return (-_MOST_INTEGER if value < 0 else _MOST_INTEGER) if outward else None
    near = float(value)
    if up and near < value:
        near = math.nextafter(near, math.inf)
    if not up and near > value:
        near = math.nextafter(near, -math.inf)
    return int(near)


def _has_large_integer(value: Any) -> bool:
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, dict):
            stack.extend(each.values())
        elif isinstance(each, list):
            stack.extend(each)
        elif isinstance(each, int) and abs(each) > EXACT:
            return True
    return False
