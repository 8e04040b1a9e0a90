"""Alternatives of a JSON schema that exclude each other (`oneOf`)."""

from __future__ import annotations

import itertools
from typing import Any

from draftwire_core.engine.logits.schema.listed_values import constants_of, disjoint, types_of
from draftwire_core.engine.logits.schema.references import References
from draftwire_core.engine.logits.schema.refusals import Refusals, Strictness, check_shapes, inside

Schema = dict[str, Any]


class Alternatives:
    """Says `oneOf` as `anyOf` where that is the same."""

    def __init__(self, references: References, refusals: Refusals) -> None:
        self._references = references
        self._refusals = refusals
        self._tagged: dict[tuple[int, str], str] = {}
        """Names of the definitions below, by the schema that they are of and the property that they require."""
        self.definitions: list[tuple[str, Schema, str]] = []
        """Definitions to add: their names, their schemas as given, and the places of these."""

    def rewritten(self, schema: Schema, place: str) -> Schema:
        """Returns a schema that says alternatives which exclude each other as alternatives of any kind."""
        branches = schema.get("oneOf")
        if not isinstance(branches, list) or "anyOf" in schema:
            return schema
        exclusive = self._exclusive(branches, inside(place, "oneOf"))
        if exclusive is None:
            if self._refusals.strictness is Strictness.LENIENT:
                self._refusals.refuse(place, "oneOf", "has alternatives that do not exclude each other")
                exclusive = branches
            else:
                return schema  # the library decides
        del schema["oneOf"]
        return schema | {"anyOf": exclusive}

    def _exclusive(self, branches: list[Any], place: str) -> list[Any] | None:
        """Returns alternatives each of which excludes the others; None if none can be found."""
        if len(branches) < 2:
            return branches
        resolved = [self._references.resolved(each) for each in branches]
        if not all(isinstance(each, dict) for each in resolved):
            return None
        for index, each in enumerate(resolved):
            check_shapes(each, f"{place}[{index}]")
        kinds = [{"number" if kind == "integer" else kind for kind in types_of(each)} for each in resolved]
        if all(not one & other for one, other in itertools.combinations(kinds, 2)):
            return branches
        values = [constants_of(each) for each in resolved]
        if all(each is not None for each in values) and disjoint(values):
            return branches
        if any(kind != {"object"} for kind in kinds):
            return None
        for tag in resolved[0].get("properties") or ():
            told = [
                constants_of(self._references.resolved((each.get("properties") or {}).get(tag))) for each in resolved
            ]
            if all(each is not None for each in told) and disjoint(told):
                return [self._requiring(whole, each, tag) for whole, each in zip(branches, resolved, strict=True)]
        return None

    def _requiring(self, whole: Schema, resolved: Schema, tag: str) -> Schema:
        """Returns an alternative that requires a property. whole: as it was given, perhaps a reference to it."""
        required = resolved.get("required") or ()
        if tag in required:
            return whole
        kept = {key: value for key, value in resolved.items() if key != "$id"} | {"required": [*required, tag]}
        if whole is resolved:
            return kept
        # A definition of its own: a copy in each place would grow without an end where it refers to itself.
        key = (id(resolved), tag)
        if key not in self._tagged:
            self._tagged[key] = f"x-draftwire-{len(self._tagged)}"
            self.definitions.append((self._tagged[key], kept, whole["$ref"]))
        return {"$ref": f"#/$defs/{self._tagged[key]}"}
