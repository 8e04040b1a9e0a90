"""Types and definitions of the parts of a schema, with references of all kinds."""

from typing import Any

import pytest

from gateway.answers.spelled.argument_schema import resolved, types_of, with_definitions

A: dict[str, Any] = {"$ref": "#/$defs/a"}


@pytest.mark.parametrize(
    ("definitions", "types"),
    [
        ({"a": {"anyOf": [A, A, {"type": "null"}]}}, {"null"}),
        ({"a": {"oneOf": [{"$ref": "#/$defs/b"}] * 3}, "b": {"anyOf": [A, {"const": 1}]}}, {"integer"}),
        ({"a": {"anyOf": [{"enum": ["x", 1.5]}, {"type": ["null", "array"]}]}}, {"string", "number", "null", "array"}),
        ({"a": {"anyOf": [{"type": ["null", "array"]}, {}]}}, None),
        ({"a": {"anyOf": [{"type": "null"}, True]}}, None),
        ({"a": {"allOf": [{"$ref": "#/$defs/b~1c"}]}, "b/c": {"type": "number"}}, {"number"}),
        ({"a": A}, None),
        ({"a": {"anyOf": []}}, None),
        ({"a": {"enum": []}}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_each_reference_is_followed_once(definitions: dict[str, Any], types: set[str] | None) -> None:
    assert types_of(A, {"$defs": definitions}) == types


def test_a_reference_that_leads_nowhere_is_an_empty_schema() -> None:
    for root in ({}, {"$defs": {"a": A}}):
        assert resolved(A, root) == {}
        assert resolved({"$ref": "https://a.schema"}, root) == {}


def test_a_part_takes_along_what_it_refers_to() -> None:
    root = {
        "$defs": {"a": {"items": {"$ref": "#/definitions/b~1c/items"}}, "own": {}, "unused": {}},
        "definitions": {"b/c": {"items": A}, "unused": {}},
    }
    assert with_definitions({"items": [A], "$defs": {"own": {"type": "null"}}}, root) == {
        "items": [A],
        "$defs": {"own": {"type": "null"}, "a": root["$defs"]["a"]},
        "definitions": {"b/c": {"items": A}},
    }
    for part in ({"type": "null"}, {"$ref": "#"}, {"$ref": "#/$defs/none"}):
        assert with_definitions(part, root) == part
    assert with_definitions(True, root) == {}
