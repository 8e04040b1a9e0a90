"""Types and definitions of the parts of a schema, with references of all kinds."""

from typing import Any

import jsonschema_rs
import pytest

from gateway_service.answers.spelled.argument_schema import required, resolved, types_of, with_definitions
from tests.harness.engine.counted_work import instructions

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


def test_types_that_take_too_much_work_are_any() -> None:
    numbers, more = ([{"const": each} for each in range(count)] for count in (4000, 5000))
    assert types_of({"anyOf": numbers}, {}) == {"integer"}
    assert types_of({"anyOf": more}, {}) is None
    assert types_of({"enum": list(range(70_000))}, {}) is None
    name = "a" * 2000
    assert types_of({"$ref": f"#/$defs/{name}"}, {"$defs": {name: {"type": "null"}}}) is None


def test_what_is_read_of_a_schema_is_counted() -> None:
    counted: list[int] = []
    many = {"required": ["a", "b", {}] * 100}
    assert required(A, {"$defs": {"a": many}}, counted.append) == {"a", "b"} and counted == [300]
    assert types_of({"type": ["null", "array"] * 100}, {}, counted.append) and counted[-1] > 200


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
    for part in ({"type": "null"}, {"$ref": "#/$defs/none"}, {"$ref": "#/properties/none"}, {"$ref": "a.json#/b"}):
        assert with_definitions(part, root) == part
    assert with_definitions(True, root) == {}


CITY = {"type": "string", "maxLength": 9}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": CITY,
        "a/b c": {"items": {"$ref": "#/properties/city"}},
        "both": {"anyOf": [{"type": "null"}, {"$ref": "#/properties/a~1b%20c"}]},
        "first": {"$ref": "#/properties/both/anyOf/1"},
        "more": {"type": "array", "items": {"$ref": "#"}},
        "node": {"$anchor": "here", "type": "integer"},
        "there": {"$ref": "#here"},
        "text": {"const": {"$ref": "#/properties/city"}},
        "of": {"$ref": "#/$defs/d"},
    },
    "$defs": {"d": {"items": {"$ref": "#/properties/node"}}},
}
VALUES: dict[str, tuple[Any, Any]] = {
    "a/b c": (["Rome"], [3]),
    "both": (["Rome"], [3]),
    "first": (["Rome"], [3]),
    "more": ([{"city": "Rome", "more": []}], [{"more": [{"city": 3}]}]),
    "there": (3, "x"),
    "text": ({"$ref": "#/properties/city"}, {}),
    "of": ([3], ["x"]),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_part_means_the_same_alone_and_inside_another(name: str) -> None:
    """Wherever in the schema its references lead to."""
    good, bad = VALUES[name]
    assert jsonschema_rs.is_valid(TREE, {name: good}) and not jsonschema_rs.is_valid(TREE, {name: bad})
    part = with_definitions(TREE["properties"][name], TREE)
    assert jsonschema_rs.is_valid(part, good) and not jsonschema_rs.is_valid(part, bad)
    nested = {"properties": {"parameters": {key: each for key, each in TREE.items() if key != "$defs"}}}
    whole = with_definitions(nested, TREE)
    assert jsonschema_rs.is_valid(whole, {"parameters": {name: good}})
    assert not jsonschema_rs.is_valid(whole, {"parameters": {name: bad}})


def test_a_part_that_many_spellings_of_a_reference_lead_to_is_taken_along_once() -> None:
    spelled = [f"#/properties/{at}" for at in ("city", "cit%79", "ci%74y", "c%69ty", "%63ity")]
    part = with_definitions({"anyOf": [{"$ref": each} for each in spelled]}, TREE)
    assert len(part["$defs"]) == 1 and part["anyOf"] == [part["anyOf"][0]] * len(spelled)
    assert jsonschema_rs.is_valid(part, "Rome") and not jsonschema_rs.is_valid(part, 3)


@pytest.mark.parametrize("known", [True, False])
def test_each_reference_to_an_anchor_is_cheap(known: bool) -> None:
    """However many a schema has: it is not walked for each."""

    def work(count: int) -> int:
        schema: dict[str, Any] = {
            "anyOf": [{"$ref": f"#a{at}"} for at in range(count)],
            "$defs": {f"d{at}": {"$anchor": f"a{at}" if known else "other"} for at in range(count)},
        }
        return instructions(lambda: (types_of(schema, schema), with_definitions(schema, schema)))

    assert work(400) < 6 * work(100)
