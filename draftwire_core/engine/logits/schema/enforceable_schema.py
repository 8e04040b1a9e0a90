"""JSON schemas rewritten in the form that the grammar library enforces.

A schema is rewritten part by part. What says nothing is dropped. What can be said in the library's keywords is said in
them. What no grammar can enforce is refused by its place, or dropped where the request lets it (`Strictness`). Whatever
the rewritten schema allows, the given one allows, except for parts that were dropped. docs/requests.md has the table of
all keywords.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from draftwire_core.engine.logits.schema.alternatives import Alternatives
from draftwire_core.engine.logits.schema.counts import Counts
from draftwire_core.engine.logits.schema.large_integers import with_exact_integers
from draftwire_core.engine.logits.schema.patterns import Patterns
from draftwire_core.engine.logits.schema.references import LISTS, MAPS, ONE, References
from draftwire_core.engine.logits.schema.refusals import (
    OF_ROOT,
    Refusals,
    SchemaError,
    Strictness,
    check_shapes,
    inside,
    with_whole_counts,
)

Schema = dict[str, Any]

OWN = "x-draftwire"
"""Keyword of a schema's root with our own options: `strict`, the `name` by which errors call the schema, and the
`place` that it is the schema of, in a larger one of that name."""
_LIBRARY = "x-guidance"
_OF_ADDRESS = "!#$%&'()*+,/:;=?@"
"""Characters that an address may have besides letters, digits, and ``-._~``."""
UNSUPPORTED = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependencies", "dependentRequired",
    "dependentSchemas", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
"""Keywords that no grammar enforces."""


def enforceable(schema: Schema, accepts: Callable[[Schema], str]) -> Schema:
    """Returns a schema in the library's terms. accepts: returns the library's error for a schema, or an empty text.

    Raises:
        SchemaError: a part cannot be enforced.
        RecursionError: it is nested too deeply.
    """
    try:
        return _Rewriting(schema, Refusals(_strictness(schema)), accepts).root()
    except SchemaError as error:
        raise SchemaError("", named(schema, str(error))) from error


def dropped(schema: Schema, accepts: Callable[[Schema], str]) -> list[str]:
    """Returns the places of what `enforceable` drops of a schema, in parentheses after its name if it has one, as
    `forecast(properties.city.pattern)`. Raises as that does."""
    if _strictness(schema) is not Strictness.LENIENT:
        return []
    refusals = Refusals(Strictness.LENIENT)
    _Rewriting(schema, refusals, accepts).root()
    name, place = _option(schema, "name"), _option(schema, "place")
    places = [inside(place, each) for each in refusals.dropped]
    return [f"{name[:64]}({each})" for each in places] if name else places


def _strictness(schema: Schema) -> Strictness:
    library, options = schema.get(_LIBRARY), schema.get(OWN)
    if isinstance(library, dict) and library.get("lenient") is True:
        return Strictness.LENIENT
    strict = isinstance(options, dict) and bool(options.get("strict"))
    return Strictness.STRICT if strict else Strictness.USUAL


def named(schema: Schema, message: str) -> str:
    """Returns a message about a schema with the schema's name, if it has one."""
    name = _option(schema, "name")
    return f"in the schema of {name[:64]!r}: {message}" if name else message


def _option(schema: Schema, key: str) -> str:
    """Returns one of our own options that is a text; an empty one if there is none."""
    options = schema.get(OWN)
    value = options.get(key) if isinstance(options, dict) else None
    return value if isinstance(value, str) else ""


class _Rewriting:
    """The rewriting of one schema."""

    def __init__(self, root: Schema, refusals: Refusals, accepts: Callable[[Schema], str]) -> None:
        self._root = root
        self._refusals = refusals
        self._references = References(root)
        self._alternatives = Alternatives(self._references, refusals)
        self._patterns = Patterns(accepts, refusals)
        self._counts = Counts(self._references, refusals)
        self._moved: dict[int, str] = {}
        """Names of the definitions of what is moved and referred to, by the schema that is moved."""

    def root(self) -> Schema:
        """Returns the whole schema rewritten."""
        place = self._references.endless()
        if place is not None:
            raise SchemaError(place, "refers to itself without an end: no value is ever finished")
        found = self._schema(self._root, "")
        for name, schema, at in self._alternatives.definitions:  # rewriting one may add others
            found["$defs"] = found.get("$defs", {}) | {name: self._schema(schema, at)}
        return found

    def _schema(self, schema: Schema, place: str) -> Schema:
        """Returns a schema rewritten, with those in it."""
        check_shapes(schema, place)
        found = with_whole_counts(schema)
        found.pop(OWN, None)
        for step in (
            self._references_to_moved,
            self._older,
            self._without_meaning,
            self._unsupported,
            self._counts.names,
            self._alternatives.rewritten,
            self._patterns.of_format,
            self._patterns.of_text,
            self._integers,
        ):
            found = step(found, place)
        for key in MAPS:
            if key in found:
                found[key] = {
                    name: self._part(each, inside(place, f"{key}.{name}")) for name, each in found[key].items()
                }
        for key in (*LISTS, *ONE):
            spelled = "oneOf" if key == "anyOf" and "oneOf" in schema and "oneOf" not in found else key
            each, at = found.get(key), inside(place, spelled)
            if isinstance(each, list):
                found[key] = [self._part(one, f"{at}[{index}]") for index, one in enumerate(each)]
            elif isinstance(each, dict):
                found[key] = self._part(each, at)
        for step in (self._patterns.of_names, self._counts.unique, self._counts.properties, self._nullable):
            found = step(found, place)
        return found

    def _part(self, part: Any, place: str) -> Any:
        if isinstance(part, dict) and part.get("not") in ({}, True):
            return False  # as zod, TypeBox and Effect write what never is
        return self._schema(part, place) if isinstance(part, dict) else part

    def _integers(self, schema: Schema, place: str) -> Schema:
        return with_exact_integers(schema, place, self._refusals)

    def _references_to_moved(self, schema: Schema, place: str) -> Schema:
        """Refers to a definition in place of a part that the rewriting moves: of `oneOf`, or of what may be null."""
        path = self._references.path(schema.get("$ref"))
        moves = any(
            part == "oneOf" or (isinstance(holder, dict) and holder.get("nullable") is True and part not in OF_ROOT)
            for (_, holder), (part, _) in pairwise(path)
        )
        if not moves or not isinstance(target := path[-1][1], dict):
            # Many programs write names as they are, with spaces or letters that no address may have.
            named = quote(schema["$ref"], safe=_OF_ADDRESS, errors="replace") if path else ""
            return schema | {"$ref": named} if named else schema
        if id(target) not in self._moved:
            self._moved[id(target)] = f"{OWN}-moved-{len(self._moved)}"
            at = ""
            for (_, holder), (part, _) in pairwise(path):
                at = f"{at}[{part}]" if isinstance(holder, list) else inside(at, part)
            self._alternatives.definitions.append((self._moved[id(target)], target, at))
        return schema | {"$ref": f"#/$defs/{self._moved[id(target)]}"}

    def _older(self, schema: Schema, place: str) -> Schema:
        """Says bounds that older drafts spell otherwise."""
        for bound, exclusive in zip(("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), strict=True):
            if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
                schema[exclusive] = schema.pop(bound)
        return schema

    def _nullable(self, schema: Schema, place: str) -> Schema:
        """Says OpenAPI's `nullable` as an alternative."""
        if schema.pop("nullable", None) is not True:
            return schema
        kept = {key: schema.pop(key) for key in OF_ROOT if key in schema}
        return kept | {"anyOf": [schema, {"type": "null"}]}

    def _without_meaning(self, schema: Schema, place: str) -> Schema:
        """Drops keywords whose values say nothing."""
        nothing: dict[str, tuple[Any, ...]] = {
            "uniqueItems": (False,),
            "not": (False,),
            "propertyNames": (True, {}, {"type": "string"}),
            "dependencies": ({},),
            "dependentRequired": ({},),
            "dependentSchemas": ({},),
            "unevaluatedProperties": (True, {}),
            "unevaluatedItems": (True, {}),
            "minProperties": (0,),
            "minItems": (0,),
            "minLength": (0,),
        }
        for key, values in nothing.items():
            if key in schema and any(schema[key] == each for each in values):
                del schema[key]
        schema.pop("$dynamicAnchor", None)  # references to it are refused
        if "contains" not in schema or (schema.get("minContains") == 0 and "maxContains" not in schema):
            for key in ("contains", "minContains", "maxContains"):
                schema.pop(key, None)
        if "if" not in schema or not {"then", "else"} & set(schema):
            for key in ("if", "then", "else"):
                schema.pop(key, None)
        composed = {"allOf", "anyOf", "oneOf", "$ref", "if", "dependentSchemas", "$dynamicRef"} & set(schema)
        if schema.get("unevaluatedProperties") is False and not composed:
            schema.setdefault("additionalProperties", schema.pop("unevaluatedProperties"))
            schema.pop("unevaluatedProperties", None)
        if schema.get("unevaluatedItems") is False and not composed and "contains" not in schema:
            rest = "additionalItems" if isinstance(schema.get("items"), list) else "items"
            schema.setdefault(rest, schema.pop("unevaluatedItems"))
            schema.pop("unevaluatedItems", None)
        return schema

    def _unsupported(self, schema: Schema, place: str) -> Schema:
        """Refuses or drops keywords that no grammar can enforce."""
        for key in UNSUPPORTED:
            if key in schema:
                self._refusals.refuse(place, key, "cannot be enforced by a grammar")
                del schema[key]
        return schema
