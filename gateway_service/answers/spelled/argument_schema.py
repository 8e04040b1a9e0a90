"""The JSON schema of a tool's arguments: what it says about them and about its parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from threading import local
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote

DEFINITIONS = ("$defs", "definitions")
"""Keys of the definitions that references lead to."""
_VALUES = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""
_MOST_DIGITS = 10
"""Digits of an index that is surely beyond any list."""
_MOST_REFERENCES = 32
_MOST_LETTERS = 1024
"""Characters of a reference that is followed: it is read wherever one leads to it."""
_PART = 16
"""Work of a part of a schema that is walked, in listed values or types."""
_MOST_WORK = 4096 * _PART
"""For the types of one value."""
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


def required(schema: Any, root: Mapping[str, Any], count: Callable[[int], object]) -> frozenset[str]:
    """Returns the names of the properties that an object must have. count: called with the work, in names."""
    schema = resolved(schema, root)
    found = schema.get("required") if isinstance(schema, Mapping) else None
    if not isinstance(found, list):
        return frozenset()
    count(len(found))
    return frozenset(each for each in found if isinstance(each, str))


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


def types_of(
    schema: Any, root: Mapping[str, Any], count: Callable[[int], object] = lambda work: None
) -> frozenset[str] | None:
    """Returns the JSON types that a schema allows; None if any, or if finding out takes too much work.

    root: the document that its references are in. count: called with the work as it is done, in listed values.
    """
    found: set[str] = set()
    todo, seen, work = [schema], set[int](), 0
    while todo:
        part = todo.pop()
        count(step := _PART + _listed(part))
        work += step
        if work > _MOST_WORK:
            return None
        if id(part) in seen:
            continue
        seen.add(id(part))
        if inner := _inner(part, root):
            todo += inner
        elif (types := _own_types(part)) is None:
            return None
        else:
            found |= types
    return frozenset(found) or None


def with_definitions(schema: Any, root: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a part of a schema as a schema of its own, with what it refers to, directly or not.

    Definitions keep their names. What other references lead to, as `#/properties/city`, `#` or an anchor, has another
    place in the new schema: among its definitions, under new names.
    """
    found: dict[str, dict[str, Any]] = {}
    moved: dict[int, tuple[str, Any]] = {}
    """Names and schemas of what is no definition, by identity: many references may lead to one part."""
    names: dict[str, str] = {}
    """New references to these, by the old ones."""
    todo = [schema]
    while todo:
        for reference in _references(todo.pop()):
            if (place := _definition(reference)) is not None:
                kind, name = place
                among = root.get(kind)
                if isinstance(among, Mapping) and name in among and name not in found.setdefault(kind, {}):
                    found[kind][name] = among[name]
                    todo.append(among[name])
            elif reference not in names and isinstance(target := _found(reference, root), (Mapping, bool)):
                if id(target) not in moved:
                    moved[id(target)] = f"x-draftwire-moved-{len(moved)}", _alone(target)
                    todo.append(moved[id(target)][1])
                names[reference] = f"#/{DEFINITIONS[0]}/{moved[id(target)][0]}"
    own = schema if isinstance(schema, Mapping) else {}
    whole = {**own, **{kind: {**_mapping(own.get(kind)), **needed} for kind, needed in found.items() if needed}}
    if not moved:
        return whole
    whole = _redirected(whole, names)
    more = {name: _redirected(target, names) for name, target in moved.values()}
    return {**whole, DEFINITIONS[0]: {**_mapping(whole.get(DEFINITIONS[0])), **more}}


def _alone(schema: Any) -> Any:
    """Returns a schema without what it holds for others and what says where it is."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: value for key, value in schema.items() if key not in (*DEFINITIONS, "$id", "$schema", "$anchor")}


def _redirected(schema: Any, names: Mapping[str, str]) -> Any:
    """Returns a schema whose references lead elsewhere. names: new references by the old ones."""
    if isinstance(schema, list):
        return [_redirected(each, names) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    found = {key: value if key in _VALUES else _redirected(value, names) for key, value in schema.items()}
    if isinstance(reference := schema.get("$ref"), str):
        found["$ref"] = names.get(reference, reference)
    return found


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
    found = _found(reference, root)
    return {} if found is None else found


def _found(reference: str, root: Mapping[str, Any]) -> Any:
    """Returns what a reference leads to; None if to nothing in the schema."""
    if not reference.startswith("#") or len(reference) > _MOST_LETTERS:
        return None
    if reference != "#" and not reference.startswith("#/"):
        return _anchors(root).get(unquote(reference[1:]))
    found: Any = root
    for spelled in reference.split("/")[1:]:
        key = _unescaped(spelled)
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and len(key) < _MOST_DIGITS and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


class _Latest(local):
    """The schema whose anchors a thread last looked for, and these: each of its references asks for them."""

    schema: Any = None
    anchors: Mapping[str, Any] = MappingProxyType({})


_latest = _Latest()


def _anchors(root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the parts of a schema that have anchors, by these."""
    if _latest.schema is root:
        return _latest.anchors
    found: dict[str, Any] = {}
    todo: list[Any] = [root]
    while todo:
        part = todo.pop()
        if isinstance(part, Mapping):
            for name in (part.get("$anchor"), str(part.get("$id", "")).removeprefix("#")):
                if isinstance(name, str):
                    found.setdefault(name, part)
            todo += part.values()
        elif isinstance(part, list):
            todo += part
    _latest.schema, _latest.anchors = root, found
    return found


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


def _listed(schema: Any) -> int:
    """Returns the number of values and types that a schema lists."""
    lists = (schema.get(key) for key in ("enum", "type")) if isinstance(schema, Mapping) else ()
    return sum(len(each) for each in lists if isinstance(each, list))


def _inner(schema: Any, root: Mapping[str, Any]) -> list[Any]:
    """Returns the parts that state a schema's types; none if it states them itself, or if they are not known."""
    if not isinstance(schema, Mapping):
        return []
    if isinstance(schema.get("$ref"), str):
        return [_target(schema["$ref"], root)]
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
    return unquote(key).replace("~1", "/").replace("~0", "~")
