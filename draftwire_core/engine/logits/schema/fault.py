"""The part of a JSON schema that the grammar library refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftwire_core.engine.logits.schema.references import subschemas

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
