"""JSON schemas in the form that the grammar library enforces.

A schema is rewritten part by part. What says nothing is dropped. What can be said in the library's keywords is said in
them. What no grammar can enforce is refused by its place, or dropped where the request lets it: `Strictness`. Whatever
the rewritten schema allows, the given one allows, except for parts that were dropped. docs/requests.md has the table of
all keywords.
"""

from __future__ import annotations

import enum
import itertools
import json
import math
import re
from collections.abc import Callable
from typing import Any

from speculative_engine.logits.json_formats import ENFORCED_FORMATS, FORMAT_PATTERNS, SAYING_NOTHING
from speculative_engine.logits.lookahead import without_lookahead
from speculative_engine.logits.schema_references import LISTS, MAPS, ONE, References, subschemas

Schema = dict[str, Any]

OWN = "x-draftwire"
"""Keyword of a schema's root with our own options: `strict`, and the `name` by which errors call the schema."""
_LIBRARY = "x-guidance"
_OF_ROOT = ("$schema", "$id", "$defs", "definitions", _LIBRARY)
"""Keywords of a root that stay there when the rest of it moves."""
_MOST_ARRANGEMENTS = 256
"""Most alternatives into which one keyword is rewritten."""
_MOST_TRIES = 200
"""Most parts of a schema that are tried alone to find its fault."""
_EXACT = 1 << 53
"""Integers beyond this are not all kept by the library, which computes with floats."""
_MOST_INTEGER = 9223372036854774784
"""Largest integer bound that the library takes."""
_LOWER, _UPPER = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")


class Strictness(enum.Enum):
    """What happens to what no grammar can enforce."""

    LENIENT = 0
    """It is dropped: whoever reads the value checks it."""
    USUAL = 1
    """It is refused, except for formats and `uniqueItems`, which count as annotations."""
    STRICT = 2
    """It is refused."""


class SchemaError(ValueError):
    """Raised for a part of a schema that cannot be enforced; the message begins with its place."""

    def __init__(self, place: str, reason: str) -> None:
        super().__init__(f"{place}: {reason}" if place else reason)


def enforceable(schema: Schema, accepts: Callable[[Schema], str]) -> Schema:
    """Returns a schema in the library's terms. accepts: returns the library's error for a schema, or an empty text.

    Raises:
        SchemaError: a part cannot be enforced.
        RecursionError: it is nested too deeply.
    """
    options = schema.get(OWN)
    options = options if isinstance(options, dict) else {}
    library = schema.get(_LIBRARY)
    lenient = isinstance(library, dict) and library.get("lenient") is True
    strictness = Strictness.LENIENT if lenient else Strictness.STRICT if options.get("strict") else Strictness.USUAL
    try:
        return _Rewriting(schema, strictness, accepts).root()
    except SchemaError as error:
        name = options.get("name")
        if isinstance(name, str):
            raise SchemaError(f"in the schema of {name[:64]!r}", str(error)) from error
        raise


class _Rewriting:
    """The rewriting of one schema."""

    def __init__(self, root: Schema, strictness: Strictness, accepts: Callable[[Schema], str]) -> None:
        self._root = root
        self._strictness = strictness
        self._accepts = accepts
        self._references = References(root)
        self._patterns: dict[str, tuple[list[str], str]] = {}
        """Patterns by what they were: those in their place, or the reason why there is none."""

    def root(self) -> Schema:
        place = self._references.endless()
        if place is not None:
            raise SchemaError(place, "refers to itself without an end: no value is ever finished")
        return self._schema(self._root, "")

    def _schema(self, schema: Schema, place: str) -> Schema:
        """Returns a schema rewritten, with those in it."""
        found = dict(schema)
        found.pop(OWN, None)
        for step in (
            self._older,
            self._without_meaning,
            self._unsupported,
            self._names,
            self._one_of,
            self._format,
            self._pattern,
            self._integers,
        ):
            found = step(found, place)
        before = f"{place}." if place else ""
        for key in MAPS:
            if isinstance(found.get(key), dict):
                found[key] = {
                    name: self._schema(each, f"{before}{key}.{name}") if isinstance(each, dict) else each
                    for name, each in found[key].items()
                }
        for key in (*LISTS, *ONE):
            each = found.get(key)
            if isinstance(each, dict):
                found[key] = self._schema(each, f"{before}{key}")
            elif isinstance(each, list):
                found[key] = [
                    self._schema(one, f"{before}{key}[{index}]") if isinstance(one, dict) else one
                    for index, one in enumerate(each)
                ]
        for step in (self._pattern_names, self._unique, self._counts):
            found = step(found, place)
        return found

    def _refuse(self, place: str, keyword: str, reason: str) -> None:
        """Refuses a keyword, unless the request leaves it to others."""
        if self._strictness is not Strictness.LENIENT:
            raise SchemaError(f"{place}.{keyword}" if place else keyword, reason)

    def _older(self, schema: Schema, place: str) -> Schema:
        """Says what older drafts and OpenAPI spell otherwise."""
        for bound, exclusive in zip(("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum"), strict=True):
            if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
                schema[exclusive] = schema.pop(bound)
        if schema.pop("nullable", None) is True:
            kept = {
                key: schema.pop(key) for key in ("$schema", "$defs", "definitions", "$id", _LIBRARY) if key in schema
            }
            return kept | {"anyOf": [schema, {"type": "null"}]}
        return schema

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
                self._refuse(place, key, "cannot be enforced by a grammar")
                del schema[key]
        return schema

    def _names(self, schema: Schema, place: str) -> Schema:
        """Says which names properties may have by the properties themselves."""
        names = schema.pop("propertyNames", None)
        if names is None:
            return schema
        values = schema.get("additionalProperties", True)
        names = self._references.resolved(names)
        allowed = _constants(names)
        if names is False or allowed is not None:
            given = schema.get("properties", {})
            if "patternProperties" not in schema and isinstance(given, dict):
                texts = [name for name in allowed or () if isinstance(name, str)]
                kept = {name: given[name] for name in given if name in texts}
                more = {name: values for name in texts if name not in given and values is not False}
                return schema | {"properties": kept | more, "additionalProperties": False}
        elif isinstance(names, dict) and not {"properties", "patternProperties"} & set(schema):
            said = set(names) - {"type", "pattern", "minLength", "maxLength", *_ANNOTATIONS}
            if "format" in said and self._strictness is not Strictness.STRICT:
                said.remove("format")  # an annotation, as elsewhere
            if not said:
                pattern = _pattern_of_names(names)
                if pattern is None:
                    return schema
                return schema | {"patternProperties": {pattern: values}, "additionalProperties": False}
        self._refuse(place, "propertyNames", "can be enforced only as an enum, a pattern or a length, and alone")
        return schema

    def _one_of(self, schema: Schema, place: str) -> Schema:
        """Says alternatives that exclude each other as alternatives of any kind."""
        branches = schema.get("oneOf")
        if not isinstance(branches, list) or "anyOf" in schema:
            return schema
        exclusive = self._exclusive(branches)
        if exclusive is None:
            if self._strictness is Strictness.LENIENT:
                exclusive = branches
            else:
                return schema  # the library decides
        del schema["oneOf"]
        return schema | {"anyOf": exclusive}

    def _exclusive(self, branches: list[Any]) -> list[Any] | None:
        """Returns alternatives each of which excludes the others; None if none can be found."""
        if len(branches) < 2:
            return branches
        resolved = [self._references.resolved(each) for each in branches]
        if not all(isinstance(each, dict) for each in resolved):
            return None
        kinds = [{"number" if kind == "integer" else kind for kind in _types(each)} for each in resolved]
        if all(not one & other for one, other in itertools.combinations(kinds, 2)):
            return branches
        values = [_constants(each) for each in resolved]
        if all(each is not None for each in values) and _disjoint(values):
            return branches
        if any(kind != {"object"} for kind in kinds):
            return None
        for tag in resolved[0].get("properties") or ():
            told = [_constants(self._references.resolved((each.get("properties") or {}).get(tag))) for each in resolved]
            if all(each is not None for each in told) and _disjoint(told):
                return [_requiring(whole, each, tag) for whole, each in zip(branches, resolved, strict=True)]
        return None

    def _format(self, schema: Schema, place: str) -> Schema:
        """Says formats by patterns, and drops those that say nothing."""
        name = schema.get("format")
        if not isinstance(name, str) or name in ENFORCED_FORMATS:
            return schema
        del schema["format"]
        if name in FORMAT_PATTERNS:
            return _with_patterns(schema, [FORMAT_PATTERNS[name]])
        if name not in SAYING_NOTHING and self._strictness is Strictness.STRICT:
            self._refuse(place, "format", f"{name[:64]!r} cannot be enforced")
        return schema

    def _pattern(self, schema: Schema, place: str) -> Schema:
        pattern = schema.get("pattern")
        if not isinstance(pattern, str):
            return schema
        patterns, reason = self._said(pattern)
        if patterns != [pattern]:
            del schema["pattern"]
        if reason:
            self._refuse(place, "pattern", f"{shortened(pattern)} cannot be enforced: {reason}")
        elif patterns != [pattern]:
            return _with_patterns(schema, patterns)
        return schema

    def _pattern_names(self, schema: Schema, place: str) -> Schema:
        named = schema.get("patternProperties")
        if not isinstance(named, dict):
            return schema
        for pattern in list(named):
            patterns, reason = self._said(pattern)
            if patterns == [pattern]:
                continue
            reason = reason or "look-around is not supported here"
            self._refuse(place, "patternProperties", f"{shortened(pattern)} cannot be enforced: {reason}")
            named = {each: value for each, value in named.items() if each != pattern}
            schema = schema | {"patternProperties": named, "additionalProperties": True}
        return schema

    def _said(self, pattern: str) -> tuple[list[str], str]:
        """Returns patterns that together say the same, or the reason why there are none."""
        if pattern not in self._patterns:
            reason = self._accepts({"type": "string", "pattern": pattern})
            patterns = [pattern]
            if reason:
                patterns = without_lookahead(pattern) or []
                if not patterns or any(self._accepts({"type": "string", "pattern": each}) for each in patterns):
                    patterns = []
            self._patterns[pattern] = (patterns, "" if patterns else _pattern_reason(reason))
        return self._patterns[pattern]

    def _integers(self, schema: Schema, place: str) -> Schema:
        """Keeps integers that a float does not hold from becoming others."""
        for key in (*_LOWER, *_UPPER, "multipleOf"):
            value = schema.get(key)
            if isinstance(value, float):
                if not math.isfinite(value):
                    raise SchemaError(f"{place}.{key}" if place else key, "is beyond the range of a float")
                value = int(value) if value.is_integer() else value
            if not isinstance(value, int) or isinstance(value, bool) or abs(value) <= _EXACT:
                continue
            if key == "multipleOf":
                self._refuse(place, key, "cannot be enforced beyond 2^53")
                del schema[key]
                continue
            # Inside of an excluded bound is the next integer, also for numbers with fractions: fewer are allowed then.
            inward = value + 1 if key == "exclusiveMinimum" else value - 1 if key == "exclusiveMaximum" else value
            kept: int | float | None = _inside(inward, up=key in _LOWER)
            del schema[key]
            bound = "minimum" if key in _LOWER else "maximum"
            if kept is None:
                if (value > 0) == (key in _LOWER):
                    self._refuse(place, key, f"leaves no integer that can be enforced, at most {_MOST_INTEGER}")
                continue
            other = schema.get(bound)
            if isinstance(other, int | float) and not isinstance(other, bool):
                kept = max(kept, other) if key in _LOWER else min(kept, other)
            schema[bound] = kept
        for key in ("const", "enum"):
            if key in schema and _has_large_integer(schema[key]):
                self._refuse(place, key, "has an integer beyond 2^53, which cannot be enforced")
                del schema[key]
        return schema

    def _unique(self, schema: Schema, place: str) -> Schema:
        """Says different items by all arrangements of them, if they are few."""
        if schema.get("uniqueItems") is not True:
            return schema
        del schema["uniqueItems"]
        most = schema.get("maxItems")
        if isinstance(most, int) and most < 2:
            return schema
        items = _constants(self._references.resolved(schema.get("items")))
        if items is not None and "prefixItems" not in schema:
            texts = list({json.dumps(each, sort_keys=True): each for each in items}.values())
            least = schema.get("minItems", 0)
            longest = min(len(texts), most if isinstance(most, int) else len(texts))
            number = sum(math.perm(len(texts), length) for length in range(longest + 1))
            if isinstance(least, int) and number <= _MOST_ARRANGEMENTS:
                lengths = range(least, longest + 1)
                rows = [list(row) for length in lengths for row in itertools.permutations(texts, length)]
                others = _types(schema) - {"array"}
                said = ("items", "minItems", "maxItems", "type")
                rest = {key: value for key, value in schema.items() if key not in said}
                if not others and rows and not {"enum", "const", "anyOf"} & set(rest):
                    return rest | {"enum": rows}
        if self._strictness is Strictness.STRICT:
            self._refuse(place, "uniqueItems", "can be enforced only for items of few values")
        return schema

    def _counts(self, schema: Schema, place: str) -> Schema:
        """Says the number of properties by those that are required."""
        least, most = schema.get("minProperties", 0), schema.get("maxProperties")
        if not isinstance(least, int) or not isinstance(most, int | None):
            return schema
        if "minProperties" not in schema and most is None:
            return schema
        given = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(given, dict) or not isinstance(required, list):
            return schema
        named = set(required)
        free = schema.get("additionalProperties", True) is not False or bool(schema.get("patternProperties"))
        possible = None if free else len({name for name, each in given.items() if each is not False} | named)
        if least <= len(named):
            schema.pop("minProperties", None)
            least = 0
        if most is not None and possible is not None and most >= possible:
            del schema["maxProperties"]
            most = None
        if least and not free and most is None:
            optional = [name for name, each in given.items() if each is not False and name not in named]
            missing = least - len(named)
            if 0 < missing <= len(optional) and math.comb(len(optional), missing) <= _MOST_ARRANGEMENTS:
                del schema["minProperties"]
                chosen = [{"required": list(each)} for each in itertools.combinations(optional, missing)]
                return schema | {"allOf": [*schema.get("allOf", []), {"anyOf": chosen}]}
        # The names of other properties may repeat, and then there are fewer than the library counts.
        left = set(given) - named
        if least - len(named) > 1 or ((most is not None or least) and left):
            key = "minProperties" if least else "maxProperties"
            self._refuse(place, key, "can be enforced only for properties that are named, or for one more than those")
            schema.pop("minProperties", None)
            schema.pop("maxProperties", None)
        return schema


UNSUPPORTED = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependencies", "dependentRequired",
    "dependentSchemas", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
"""Keywords that no grammar enforces."""
_ANNOTATIONS = ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly")
_ALL_TYPES = frozenset(("null", "boolean", "object", "array", "number", "string"))


def _types(schema: Schema) -> set[str]:
    """Returns the types that a schema names, or all of them."""
    told = schema.get("type")
    if isinstance(told, str):
        return {told}
    if isinstance(told, list):
        return {each for each in told if isinstance(each, str)}
    return set(_ALL_TYPES)


def _constants(schema: Any) -> list[Any] | None:
    """Returns the only values that a schema allows, if it lists them."""
    if not isinstance(schema, dict):
        return None
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return list(values) if isinstance(values, list) else None


def _disjoint(values: list[list[Any] | None]) -> bool:
    seen: set[str] = set()
    for each in values:
        texts = {json.dumps(_comparable(one), sort_keys=True) for one in each or ()}
        if texts & seen:
            return False
        seen |= texts
    return True


def _comparable(value: Any) -> Any:
    """Returns a value with 1 and 1.0 as one; they are equal in JSON schemas."""
    return float(value) if type(value) is int and abs(value) < _EXACT else value


def _requiring(whole: Schema, resolved: Schema, tag: str) -> Schema:
    """Returns an alternative that requires a property; whole: as it was given, perhaps a reference to it."""
    if tag in (resolved.get("required") or ()):
        return whole
    kept = {key: value for key, value in resolved.items() if key != "$id"}
    return kept | {"required": [*(resolved.get("required") or ()), tag]}


def _with_patterns(schema: Schema, patterns: list[str]) -> Schema:
    """Returns a schema with further patterns."""
    if "pattern" not in schema and len(patterns) == 1:
        return schema | {"pattern": patterns[0]}
    more = [{"pattern": each} for each in patterns]
    return schema | {"allOf": [*schema.get("allOf", []), *more]}


def _pattern_of_names(names: Schema) -> str | None:
    """Returns a pattern of the names that a schema allows; None if it allows all."""
    least, most = names.get("minLength", 0), names.get("maxLength")
    bounded = least or most is not None
    pattern = names.get("pattern")
    if pattern is not None and not bounded:
        return str(pattern)
    if not bounded:
        return None
    length = f"{{{least},{'' if most is None else most}}}"
    return f"^[\\s\\S]{length}$" if pattern is None else None


def _inside(value: int, *, up: bool) -> int | None:
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
        elif isinstance(each, int) and abs(each) > _EXACT:
            return True
    return False


def _pattern_reason(reason: str) -> str:
    """Returns the library's reason without its drawing of the pattern."""
    found = re.search(r"error: (.*)", reason, re.DOTALL)
    return " ".join((found[1] if found else reason).split())[:200]


def shortened(text: str, most: int = 120) -> str:
    """Returns a text of the request in quotation marks, cut."""
    return repr(text if len(text) <= most else text[:most] + "...")


def fault_of(schema: Schema, accepts: Callable[[Schema], str]) -> tuple[str, str]:
    """Returns the innermost part of a schema that the library refuses: its place and the reason; empty texts if the
    fault is of no part alone. accepts: as for `enforceable`."""
    shared = {key: schema[key] for key in _OF_ROOT if key in schema}
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
