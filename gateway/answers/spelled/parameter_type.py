"""The types that a parameter may have by its schema, and values read by them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.answers.spelled.literal_arguments import LiteralArguments

_MOST_REFERENCES = 32
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_UNIONS = ("anyOf", "oneOf")


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns a schema with its reference into `root` followed; an empty one where it cannot be."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        found: Any = root
        for key in schema["$ref"].removeprefix("#").strip("/").split("/") if schema["$ref"].startswith("#/") else ["?"]:
            found = found.get(key.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        schema = found
    return {}


def properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the properties of a schema of arguments, with their schemas."""
    root = resolved(schema, schema)
    found = root.get("properties") if isinstance(root, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def parameter_types(schema: Mapping[str, Any], name: str) -> frozenset[str] | None:
    """Returns the JSON types that an argument may have; None if any. schema: that of all arguments."""
    known = properties(schema)
    if name not in known:
        return None
    return types_of(known[name], schema)


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str] | None:
    """Returns the JSON types that a schema allows; None if any. root: the document that its references are in."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > _MOST_REFERENCES:
        return None
    if "const" in schema:
        return frozenset({_type(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(map(_type, schema["enum"]))
    told = schema.get("type")
    if isinstance(told, str):
        return frozenset({told})
    if isinstance(told, list):
        return frozenset(each for each in told if isinstance(each, str))
    for union in _UNIONS:
        if isinstance(schema.get(union), list):
            each = [types_of(part, root, depth + 1) for part in schema[union]]
            return None if None in each else frozenset().union(*filter(None, each))
    whole = schema.get("allOf")
    return types_of(whole[0], root, depth + 1) if isinstance(whole, list) and len(whole) == 1 else None


def value_of(raw: str, types: frozenset[str] | None) -> str:
    """Returns the JSON text of a value that is written as it is, or as JSON. types: those it may have, or None."""
    bare = raw.strip()
    bare = _PYTHON.get(bare, bare)
    try:
        value = json.loads(bare, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _literal(bare, types) or json.dumps(raw, ensure_ascii=False)
    kind = _type(value)
    fits = types is None or kind in types or (kind == "integer" and "number" in types)
    return bare if fits or types is None or "string" not in types else json.dumps(raw, ensure_ascii=False)


def _literal(bare: str, types: frozenset[str] | None) -> str | None:
    """Returns an object or a list that is written as in Python; None for other text."""
    kind = {"{": "object", "[": "array"}.get(bare[:1])
    if kind is None or (types is not None and kind not in types):
        return None
    reader = LiteralArguments("{", "")
    found, end = reader.push(f"{{_:{bare}}}", 0)
    try:
        json.loads(found)
    except (ValueError, RecursionError):
        return None
    return found.removeprefix('{"_": ').removesuffix("}") if end == len(bare) + 4 else None


def _type(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _refuse(name: str) -> None:
    raise ValueError(name)
