"""The types and values that a JSON schema names."""

from __future__ import annotations

import json
from typing import Any

EXACT = 1 << 53
"""Integers beyond this are not all kept by the library, which computes with floats."""
_ALL_TYPES = frozenset(("null", "boolean", "object", "array", "number", "string"))


def types_of(schema: dict[str, Any]) -> set[str]:
    """Returns the types that a schema names, or all of them."""
    told = schema.get("type")
    if isinstance(told, str):
        return {told}
    if isinstance(told, list):
        return {each for each in told if isinstance(each, str)}
    return set(_ALL_TYPES)


def constants_of(schema: Any) -> list[Any] | None:
    """Returns the only values that a schema allows, if it lists them."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list) else None


def disjoint(values: list[list[Any] | None]) -> bool:
    """Returns whether no two lists share a value."""
    seen: set[str] = set()
    for each in values:
        texts = {spelled(one) for one in each or ()}
        if texts & seen:
            return False
        seen |= texts
    return True


def spelled(value: Any) -> str:
    """Returns a value as text, 1 and 1.0 alike: they are equal in JSON schemas."""
    exact = float(value) if type(value) is int and abs(value) < EXACT else value
    return json.dumps(exact, sort_keys=True)
