"""Names and numbers of a JSON schema's properties and items."""

from __future__ import annotations

import itertools
import math
from typing import Any

from draftwire_core.engine.logits.schema.listed_values import constants_of, spelled, types_of
from draftwire_core.engine.logits.schema.references import References
from draftwire_core.engine.logits.schema.refusals import Refusals, Strictness

Schema = dict[str, Any]
_MOST_ARRANGEMENTS = 256
"""Most alternatives into which one keyword is rewritten."""
_ANNOTATIONS = ("title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly")


class Counts:
    """Says which and how many properties or items there may be by keywords that the library enforces."""

    def __init__(self, references: References, refusals: Refusals) -> None:
        self._references = references
        self._refusals = refusals

    def names(self, schema: Schema, place: str) -> Schema:
        """Says which names properties may have by the properties themselves."""
        names = schema.pop("propertyNames", None)
        if names is None:
            return schema
        values = schema.get("additionalProperties", True)
        names = self._references.resolved(names)
        allowed = self._constants(names)
        if names is False or allowed is not None:
            given = schema.get("properties", {})
            if "patternProperties" not in schema and isinstance(given, dict):
                texts = [name for name in allowed or () if isinstance(name, str)]
                kept = {name: given[name] for name in given if name in texts}
                more = {name: values for name in texts if name not in given and values is not False}
                return schema | {"properties": kept | more, "additionalProperties": False}
        elif isinstance(names, dict) and not {"properties", "patternProperties"} & set(schema):
            said = set(names) - {"type", "pattern", "minLength", "maxLength", *_ANNOTATIONS}
            if "format" in said and self._refusals.strictness is not Strictness.STRICT:
                said.remove("format")  # an annotation, as elsewhere
            if not said:
                pattern, bounded = names.get("pattern"), {"minLength", "maxLength"} & set(names)
                if pattern is None and not bounded:
                    return schema
                if pattern is None or not bounded:
                    named = _of_length(names) if pattern is None else str(pattern)
                    return schema | {"patternProperties": {named: values}, "additionalProperties": False}
        self._refusals.refuse(
            place, "propertyNames", "can be enforced only as an enum, a pattern or a length, and alone"
        )
        return schema

    def unique(self, schema: Schema, place: str) -> Schema:
        """Says different items by all arrangements of them, if they are few."""
        if schema.get("uniqueItems") is not True:
            return schema
        del schema["uniqueItems"]
        most = schema.get("maxItems")
        if isinstance(most, int) and most < 2:
            return schema
        items = self._constants(self._references.resolved(schema.get("items")))
        if items is not None and "prefixItems" not in schema:
            texts = list({spelled(each): each for each in items}.values())
            least = schema.get("minItems", 0)
            longest = min(len(texts), most if isinstance(most, int) else len(texts))
            if isinstance(least, int) and _arrangements(len(texts), longest) <= _MOST_ARRANGEMENTS:
                lengths = range(least, longest + 1)
                rows = [list(row) for length in lengths for row in itertools.permutations(texts, length)]
                others = types_of(schema) - {"array"}
                said = ("items", "minItems", "maxItems", "type")
                rest = {key: value for key, value in schema.items() if key not in said}
                if not others and rows and not {"enum", "const", "anyOf"} & set(rest):
                    return rest | {"enum": rows}
        if self._refusals.strictness is Strictness.STRICT:
            self._refusals.refuse(place, "uniqueItems", "can be enforced only for items of few values")
        return schema

    def _constants(self, schema: Any) -> list[Any] | None:
        """Returns the only values that a schema allows, if it or each of its alternatives lists them."""
        parts = schema.get("anyOf") if isinstance(schema, dict) else None
        if not isinstance(parts, list) or set(schema) - set(_ANNOTATIONS) != {"anyOf"}:
            return constants_of(schema)
        each = [constants_of(self._references.resolved(one)) for one in parts]
        return None if None in each else [value for values in each for value in values or ()]

    def properties(self, schema: Schema, place: str) -> Schema:
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
            self._refusals.refuse(
                place, key, "can be enforced only for properties that are named, or for one more than those"
            )
            schema.pop("minProperties", None)
            schema.pop("maxProperties", None)
        return schema


def _of_length(names: Schema) -> str:
    """Returns a pattern of names between two lengths."""
    return f"^[\\s\\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"


def _arrangements(number: int, longest: int) -> int:
    """Returns in how many ways up to `longest` of so many values can be arranged, or a number above the bound."""
    found = 0
    for length in range(longest + 1):
        found += math.perm(number, length)
        if found > _MOST_ARRANGEMENTS:
            break
    return found
