"""JSON schemas of all kinds, whose values fit into about 150 tokens whatever the model prefers."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]


def record(properties: dict[str, Any], **more: Any) -> Schema:
    """Returns the schema of an object that has exactly these properties."""
    named = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return named | more


def text(most: int = 8, **more: Any) -> Schema:
    return {"type": "string", "maxLength": most} | more


DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
SCHEMAS: dict[str, Schema] = {
    "flat": record({"name": text(), "age": {"type": "integer", "minimum": 0, "maximum": 120}}),
    "nested": record({"a": record({"b": record({"c": {"type": "boolean"}})}), "d": {"type": "null"}}),
    "optional properties": {
        "type": "object",
        "properties": {"x": DIGIT, "y": {"type": "boolean"}, "z": text(3)},
        "required": ["y"],
        "additionalProperties": False,
    },
    "enum": {"enum": ["red", "green", "blue", 7, None, [1, "two"], {"three": 3}]},
    "enum in an array": {"type": "array", "items": {"enum": ["north", "south"]}, "minItems": 2, "maxItems": 3},
    "const": record({"kind": {"const": "point"}, "v": {"const": 3}, "deep": {"const": {"a": [1, None]}}}),
    "array bounds": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 4},
    "empty array": {"type": "array", "maxItems": 0},
    "arrays of arrays": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        "minItems": 1,
        "maxItems": 2,
    },
    "integer range": {"type": "integer", "minimum": -17, "maximum": 1234},
    "exclusive range": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "multipleOf": {"type": "integer", "multipleOf": 7, "minimum": 7, "maximum": 700},
    "number by pattern": record({"price": text(8, pattern=r"^[0-9]{1,4}\.[0-9]{2}$")}),
    "unicode": record({"größe": {"enum": ["klein", "groß"]}, "漢字": text(4), "🙂": {"const": "é\u0301ß"}}),
    "pattern": text(20, pattern="^[A-Z]{2}-[0-9]{3,4}(x|y)?$"),
    "pattern anywhere": text(12, pattern="ab"),
    "escapes": {"enum": ['a"b\\c', "tab\there", "line\nend", "/slash/"]},
    "recursion": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": record({"v": DIGIT, "kids": {"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 2}}),
            "leaf": record({"v": DIGIT, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/end"}]}}),
            "end": record({"v": DIGIT}),
        },
    },
    "recursion without bound": {
        "$ref": "#/$defs/list",
        "$defs": {"list": record({"v": {"type": "boolean"}, "next": {"enum": [None]}})},
    },
    "a reference to itself": record({"child": {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}}),
    "anyOf": {"anyOf": [record({"a": DIGIT}), record({"b": text(5)}), {"type": "null"}]},
    "anyOf of types": {"type": ["integer", "boolean", "null"], "minimum": 0, "maximum": 99},
    "oneOf": {"oneOf": [text(6), {"type": "boolean"}]},
    "oneOf by a tag": {
        "oneOf": [record({"kind": {"const": "circle"}, "r": DIGIT}), record({"kind": {"const": "dot"}, "at": DIGIT})]
    },
    "allOf": {"allOf": [{"type": "integer"}, {"minimum": 5}, {"maximum": 50}]},
    "additionalProperties": {
        "type": "object",
        "properties": {"a": DIGIT},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 2,
    },
    "patternProperties": {
        "type": "object",
        "patternProperties": {"^n_[a-z]{1,3}$": DIGIT},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 2,
    },
    "tuple": {"type": "array", "prefixItems": [text(4), DIGIT, {"type": "boolean"}], "items": False, "minItems": 3},
    "date": {"type": "string", "format": "date"},
    "date-time": record({"at": {"type": "string", "format": "date-time", "pattern": "^2[0-9-]{9}T[0-9:]{8}Z$"}}),
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": record({"address": {"type": "string", "format": "ipv4"}}),
    "lengths": text(5, minLength=5),
    "booleans": record({name: {"type": "boolean"} for name in "abcdef"}),
    "an annotated one": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A title",
        "description": "What it is",
        **record({"level": {"type": "integer", "minimum": 1, "maximum": 5, "default": 3, "examples": [1, 2]}}),
    },
    "many properties": record({f"p{number}": {"type": "boolean"} for number in range(12)}),
}
