"""The value of a parameter that a model wrote as it is, as JSON, or as in Python."""

from __future__ import annotations

import json

from gateway_service.answers.spelled.argument_schema import type_of
from gateway_service.answers.spelled.literal_arguments import LiteralArguments

_PYTHON = {"True": "true", "False": "false", "None": "null"}


def value_of(raw: str, types: frozenset[str] | None) -> str:
    """Returns the JSON text of a value. types: JSON types that it may have, or None."""
    bare = raw.strip()
    bare = _PYTHON.get(bare, bare)
    try:
        value = json.loads(bare, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _literal(bare, types) or json.dumps(raw, ensure_ascii=False)
    kind = type_of(value)
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


def _refuse(name: str) -> None:
    raise ValueError(name)
