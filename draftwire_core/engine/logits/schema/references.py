"""References within a JSON schema, and circles of them in which no value is ever finished."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
ONE = ("additionalProperties", "items", "additionalItems")
"""Keywords that hold schemas: by names, in lists, and one or a list."""
_SAME = ("allOf", "anyOf", "oneOf")
"""Keywords whose schemas describe the same value as the schema that has them."""
_MOST_STEPS = 256
"""Most references in a row that are followed."""
_MOST_ROUNDS = 64
_MOST_DIGITS = 10
"""Digits of an index that is surely beyond any list."""


def subschemas(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the parts of a schema that are schemas, with their places; not those within them."""
    before = f"{place}." if place else ""
    for key in MAPS:
        if isinstance(schema.get(key), dict):
            yield from ((f"{before}{key}.{name}", each) for name, each in schema[key].items())
    for key in LISTS:
        if isinstance(schema.get(key), list):
            yield from ((f"{before}{key}[{index}]", each) for index, each in enumerate(schema[key]))
    for key in ONE:
        if isinstance(schema.get(key), dict):
            yield f"{before}{key}", schema[key]
        elif isinstance(schema.get(key), list):
            yield from ((f"{before}{key}[{index}]", each) for index, each in enumerate(schema[key]))


class References:
    """References of one schema by JSON pointers; those by identifiers are left to the library."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root

    def resolved(self, schema: Any) -> Any:
        """Returns a schema, or the one that it refers to if it does nothing else; itself if there is none."""
        for _ in range(_MOST_STEPS):
            if not isinstance(schema, dict) or set(schema) - {"title", "description", "default"} != {"$ref"}:
                return schema
            target = self.target(schema["$ref"])
            if target is None:
                return schema
            schema = target
        return schema

    def target(self, reference: Any) -> Any:
        """Returns what a JSON pointer of the schema points to, or None."""
        path = self.path(reference)
        return path[-1][1] if path else None

    def path(self, reference: Any) -> list[tuple[str, Any]]:
        """Returns the values on the way of a JSON pointer, from the schema itself on, each with its name or index in
        the one before it; none if it points to nothing."""
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            return []
        path: list[tuple[str, Any]] = [("", self._root)]
        for spelled in reference[1:].split("/")[1:]:
            part, value = unquote(spelled).replace("~1", "/").replace("~0", "~"), path[-1][1]
            if isinstance(value, dict) and part in value:
                path.append((part, value[part]))
            elif isinstance(value, list) and part.isdecimal() and len(part) < _MOST_DIGITS and int(part) < len(value):
                path.append((part, value[int(part)]))
            else:
                return []
        return path

    def endless(self) -> str | None:
        """Returns the place of a reference that leads back to itself at the same value, or that makes every value
        infinite; None if there is none."""
        return self._circle() or self._infinite()

    def _circle(self) -> str | None:
        done: set[int] = set()
        for place, start in self._all():
            if id(start) in done:
                continue
            path: set[int] = set()
            stack: list[tuple[str, Any, bool]] = [(place, start, False)]
            while stack:
                at, schema, left = stack.pop()
                if left:
                    path.discard(id(schema))
                    done.add(id(schema))
                    continue
                if id(schema) in path:
                    return at
                if id(schema) in done or not isinstance(schema, dict):
                    continue
                path.add(id(schema))
                stack.append((at, schema, True))
                before = f"{at}." if at else ""
                target = self.target(schema.get("$ref"))
                if isinstance(target, dict):
                    stack.append((f"{before}$ref", target, False))
                for key in _SAME:
                    if isinstance(schema.get(key), list):
                        stack.extend((f"{before}{key}[{i}]", each, False) for i, each in enumerate(schema[key]))
        return None

    def _infinite(self) -> str | None:
        """Returns the place of the reference in a schema none of whose values are finite."""
        schemas = self._all()
        finite: set[int] = set()
        for _ in range(_MOST_ROUNDS):
            before = len(finite)
            for _, schema in reversed(schemas):
                if id(schema) not in finite and self._is_finite(schema, finite):
                    finite.add(id(schema))
            if len(finite) == before:
                break
        else:
            return None
        if id(self._root) in finite or not self._root:
            return None
        holders = [place for place, each in schemas if "$ref" in each and id(each) not in finite]
        return (f"{holders[0]}.$ref" if holders[0] else "$ref") if holders else None

    def _is_finite(self, schema: dict[str, Any], finite: set[int]) -> bool:
        def known(part: Any) -> bool:
            return not isinstance(part, dict) or id(part) in finite

        if "const" in schema or "enum" in schema:
            return True
        if "$ref" in schema and not known(self.target(schema["$ref"])):
            return False
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key] and not any(known(each) for each in schema[key]):
                return False
        if isinstance(schema.get("allOf"), list) and not all(known(each) for each in schema["allOf"]):
            return False
        if schema.get("type") == "object":
            named, required = schema.get("properties"), schema.get("required")
            if isinstance(named, dict) and isinstance(required, list):
                return all(known(named.get(name)) for name in required if isinstance(name, str))
        if schema.get("type") == "array" and isinstance(least := schema.get("minItems"), int) and least > 0:
            first, items = schema.get("prefixItems"), schema.get("items")
            first = first if isinstance(first, list) else []
            return all(known(each) for each in first[:least]) and (least <= len(first) or known(items))
        return True

    def _all(self) -> list[tuple[str, dict[str, Any]]]:
        """Returns all objects of the schema that are schemas, with their places, outer ones first."""
        found: list[tuple[str, dict[str, Any]]] = []
        stack: list[tuple[str, Any]] = [("", self._root)]
        seen: set[int] = set()
        while stack:
            place, schema = stack.pop()
            if not isinstance(schema, dict) or id(schema) in seen:
                continue
            seen.add(id(schema))
            found.append((place, schema))
            stack.extend(subschemas(schema, place))
        return found
