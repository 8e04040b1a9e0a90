"""What the JSON schema of a tool's arguments says about them and about its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

DEFINITIONS = ("$defs", "definitions")
"""Keys of the definitions that references lead to."""
_MOST_REFERENCES = 32
_UNIONS = ("anyOf", "oneOf")


def resolved(schema: Any, root: Mapping[str, Any]) -> Any:
    """Returns a schema with its reference into `root` followed; an empty one where it cannot be."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping) or not isinstance(schema.get("$ref"), str):
            return schema
        schema = _target(schema["$ref"], root)
    return {}


def properties(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the properties of an object's schema, with their schemas. root: the document that references are in."""
    schema = resolved(schema, root)
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def required(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """Returns the names of the properties that an object must have."""
    schema = resolved(schema, root)
    found = schema.get("required") if isinstance(schema, Mapping) else None
    return found if isinstance(found, list) else []


def is_closed(schema: Any, root: Mapping[str, Any]) -> bool:
    """Whether an object may have no other properties than those of its schema."""
    schema = resolved(schema, root)
    return isinstance(schema, Mapping) and schema.get("additionalProperties") is False


def choices_of(schema: Any, root: Mapping[str, Any]) -> list[Any] | None:
    """Returns the values that a schema lists; None if it lists none."""
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return [schema["const"]]
    found = schema.get("enum")
    return found if isinstance(found, list) and found else None


def alternatives(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """Returns the schemas that a schema's references and unions lead to, each once: a value has to fit one of them."""
    found: list[Any] = []
    todo, seen = [schema], set[int]()
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if not isinstance(part, Mapping):
            found.append(part)
        elif isinstance(part.get("$ref"), str):
            todo.append(_target(part["$ref"], root))
        else:
            inner = _inner(part)
            todo += inner
            found += [part] * (not inner)
    return found


def types_among(parts: list[Any]) -> frozenset[str] | None:
    """Returns the JSON types that the alternatives of a schema allow; None if any."""
    found: set[str] = set()
    for part in parts:
        types = _own_types(part)
        if types is None:
            return None
        found |= types
    return frozenset(found) or None


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str] | None:
    """Returns the JSON types that a schema allows; None if any. root: the document that its references are in."""
    return types_among(alternatives(schema, root))


def with_definitions(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part of a schema as a schema of its own, with the definitions that it refers to, directly or not."""
    found: dict[str, dict[str, Any]] = {}
    todo = [schema]
    while todo:
        for kind, name in filter(None, map(_definition, _references(todo.pop()))):
            among = root.get(kind)
            if isinstance(among, Mapping) and name in among and name not in found.setdefault(kind, {}):
                found[kind][name] = among[name]
                todo.append(among[name])
    own = schema if isinstance(schema, Mapping) else {}
    return {**own, **{kind: {**_mapping(own.get(kind)), **needed} for kind, needed in found.items() if needed}}


def type_of(value: Any) -> str:
    """Returns the JSON type of a value."""
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


def _target(reference: str, root: Mapping[str, Any]) -> Any:
    """Returns what a reference leads to; an empty schema if to nothing."""
    if not reference.startswith("#/"):
        return {}
    found: Any = root
    for key in reference.removeprefix("#/").split("/"):
        found = found.get(_unescaped(key)) if isinstance(found, Mapping) else None
    return {} if found is None else found


def _definition(reference: str) -> tuple[str, str] | None:
    """Returns the kind and the name of the definition that a reference leads into; None if it leads elsewhere."""
    mark, _, rest = reference.partition("/")
    kind, _, rest = rest.partition("/")
    return (kind, _unescaped(rest.partition("/")[0])) if mark == "#" and kind in DEFINITIONS else None


def _references(schema: Any) -> Iterator[str]:
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            todo += part.values()
        elif isinstance(part, list):
            todo += part


def _inner(schema: Mapping[str, Any]) -> list[Any]:
    """Returns the parts of a schema that tell its types; none if it tells them itself, or if they are not known."""
    if "const" in schema or isinstance(schema.get("enum"), list) or isinstance(schema.get("type"), (str, list)):
        return []
    for union in _UNIONS:
        if isinstance(schema.get(union), list):
            return list(schema[union])
    whole = schema.get("allOf")
    return whole if isinstance(whole, list) and len(whole) == 1 else []


def _own_types(schema: Any) -> frozenset[str] | None:
    """Returns the types that a schema itself names; None if it names none."""
    if not isinstance(schema, Mapping):
        return None
    if "const" in schema:
        return frozenset({type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(map(type_of, schema["enum"]))
    told = schema.get("type")
    if isinstance(told, str):
        return frozenset({told})
    return frozenset(each for each in told if isinstance(each, str)) if isinstance(told, list) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _unescaped(key: str) -> str:
    return key.replace("~1", "/").replace("~0", "~")
