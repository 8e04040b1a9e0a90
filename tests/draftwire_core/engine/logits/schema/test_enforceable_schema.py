"""JSON schemas in the library's terms: what is written under them is valid, what is refused is named."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.logits.grammar_library import first_mask
from draftwire_core.engine.logits.schema.enforceable_schema import UNSUPPORTED
from draftwire_core.engine.logits.schema.patterns import ENFORCED_FORMATS, FORMAT_PATTERNS, SAYING_NOTHING
from draftwire_core.engine.text.tokenizer import Tokenizer
from tests.harness.engine.written_forms import Writer

ROOT = Path(__file__).resolve().parents[5]
EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"
"""As zod 4 writes it."""


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(Tokenizer.load(str(ROOT / "models" / "target")))


def form(schema: Any) -> Grammar:
    return Grammar(FormKind.JSON_SCHEMA, json.dumps(schema))


def record(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "additionalProperties": False}


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"x-draftwire": {"strict": True}}


def lenient(schema: dict[str, Any]) -> dict[str, Any]:
    return schema | {"x-guidance": {"lenient": True}}


CAT = record(kind={"const": "cat", "default": "cat"}, lives={"type": "integer"})
DOG = record(kind={"const": "dog", "default": "dog"}, name={"type": "string"})
BEHIND = {"type": "string", "pattern": r"(?<!x)y"}
"""No grammar enforces what stands before."""
NAMED: Any = {"type": "object", "additionalProperties": {"type": "integer"}}
KINDS: dict[str, tuple[Any, list[str], list[str]]] = {
    "names of an enum": (
        NAMED | {"propertyNames": {"enum": ["a", "b"]}},
        ["{}", '{"a": 1}', '{"a": 1, "b": 2}'],
        ['{"c": 1}', '{"a": "x"}'],
    ),
    "required names of an enum": (
        NAMED | {"propertyNames": {"type": "string", "enum": ["a", "b"]}, "required": ["a", "b"]},
        ['{"a": 1, "b": 2}'],
        ['{"a": 1}', "{}"],
    ),
    "names of a definition": (
        NAMED | {"propertyNames": {"$ref": "#/$defs/N"}, "$defs": {"N": {"enum": ["a"]}}},
        ['{"a": 1}'],
        ['{"b": 1}'],
    ),
    "names of several lists": (
        NAMED | {"propertyNames": {"anyOf": [{"$ref": "#/$defs/N"}, {"const": "b"}]}, "$defs": {"N": {"enum": ["a"]}}},
        ['{"a": 1}', '{"a": 1, "b": 2}'],
        ['{"c": 1}'],
    ),
    "different items of several lists": (
        {"type": "array", "items": {"anyOf": [{"enum": ["a"]}, {"const": "b"}]}, "uniqueItems": True},
        ['["b", "a"]', "[]"],
        ['["a", "a"]', '["c"]'],
    ),
    "names by a pattern": (NAMED | {"propertyNames": {"pattern": "^[a-c]$"}}, ['{"a": 1}'], ['{"d": 1}']),
    "names by a length": (NAMED | {"propertyNames": {"maxLength": 2}}, ['{"ab": 1}'], ['{"abc": 1}']),
    "any names": (NAMED | {"propertyNames": {"type": "string"}}, ['{"abc": 1}'], ['{"abc": "x"}']),
    "a set": ({"type": "array", "items": {"type": "string"}, "uniqueItems": True}, ['["a", "b"]'], ["[1]"]),
    "a set of few values": (
        {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True, "minItems": 1},
        ['["a"]', '["b", "a"]'],
        ["[]", '["a", "a"]'],
    ),
    "a set of equal numbers": (
        {"type": "array", "items": {"enum": [1, 1.0, 2]}, "uniqueItems": True}, ["[2]"], ["[1, 1.0]", "[2, 2]"]
    ),
    "a list": ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": False}, ["[true, true]"], ["[1]"]),
    "alternatives with a tag": (
        {"oneOf": [{"$ref": "#/$defs/C"}, {"$ref": "#/$defs/D"}], "$defs": {"C": CAT, "D": DOG},
         "discriminator": {"propertyName": "kind", "mapping": {"cat": "#/$defs/C", "dog": "#/$defs/D"}}},
        ['{"kind": "cat", "lives": 9}', '{"kind": "dog"}'],
        ["{}", '{"lives": 9}', '{"kind": "cow"}'],
    ),
    "alternatives with a tag that is not required": (
        {"oneOf": [{"$ref": "#/$defs/B"}, {"$ref": "#/$defs/L"}],
         "$defs": {"B": {"type": "object", "additionalProperties": False, "required": ["left"], "properties": {
             "kind": {"const": "branch", "default": "branch"},
             "left": {"oneOf": [{"$ref": "#/$defs/B"}, {"$ref": "#/$defs/L"}]}}},
             "L": record(kind={"const": "leaf", "default": "leaf"})}},
        ['{"kind": "leaf"}', '{"kind": "branch", "left": {"kind": "branch", "left": {"kind": "leaf"}}}'],
        ['{"kind": "branch"}', '{"kind": "branch", "left": {}}'],
    ),
    "alternatives by type": ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, ["1", '"a"'], ["null"]),
    "alternatives by value": ({"oneOf": [{"const": 1}, {"enum": [2, "x"]}]}, ["1", "2", '"x"'], ["3"]),
    "an e-mail of zod": (
        {"type": "string", "format": "email", "pattern": EMAIL},
        ['"me@here.org"', '"a.b@here.org"'],
        ['".me@here.org"', '"a..b@here.org"', '"me"'],
    ),
    "a password": (
        {"type": "string", "pattern": r"^(?=.*[A-Z])(?=.*[0-9])[A-Za-z0-9]{4,8}$"},
        ['"abC1"'],
        ['"abc1"', '"abC1abC1a"', '"aB1"'],
    ),
    "a decimal of pydantic": (
        {"anyOf": [{"type": "number"}, {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}]},
        ["1.5", '"-1.5"', '".5"', '"007"'],
        ['""', '"-"', '"."', '"+."', '"1.5e3"'],
    ),
    "a decimal of pydantic with a limit of its digits": (
        {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*(?:\d{0,6}|(?=[\d.]{1,9}0*$)\d{0,6}\.\d{0,2}0*$)"},
        ['"12"', '"-1234.56"', '"0.5000"'],
        ['""', '"-"', '"."', '"1.255"', '"1234567"', '"x"'],
    ),
    "a text that is not blank": (
        {"type": "string", "pattern": r"^(?!\s*$).+"}, ['"a"', '" a "', '"a b"'], ['""', '" "', '"  "']
    ),
    "a duration of zod": (
        {"type": "string", "format": "duration", "pattern": "^P(?:(\\d+W)|(?!.*W)(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?"
         "(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,]\\d+)?S)?)?)$"},
        ['"P3W"', '"P1Y2M3D"', '"PT5M"', '"P1DT1H30M"'],
        ['"P"', '"PT"', '"P1DT"', '"P1Y3W"', '"1D"'],
    ),
    "no text of one letter alone": ({"type": "string", "pattern": "^(?!a+$)[ab]*$"}, ['""', '"ab"'], ['"a"', '"aa"']),
    "no quotation marks": (
        {"type": "string", "pattern": '^[^"]+$'}, ['"ab"', r'"a\\b\nc"', '"é"'], [r'"a\"b"', r'"\""', '""']
    ),
    "a file's name": (
        {"type": "string", "pattern": r'^[^\\/:*?"<>|]+$'}, ['"a-b.txt"'], [r'"a\\b"', r'"a\"b"', '"a:b"']
    ),
    "printable letters, none of which is a dash": (
        {"type": "string", "pattern": r"^[^-!-,.-~]*$"}, ['" é"', '""'], ['"-"', r'"\""', r'"\\"', '"a"']
    ),
    "names without quotation marks": (
        {"type": "object", "patternProperties": {r'^[^"\n]+$': {"type": "integer"}}, "additionalProperties": False},
        ['{"ab": 1}'],
        [r'{"a\"b": 1}', '{"ab": "x"}'],
    ),
    "days of leap years": (
        {"anyOf": [{"type": "string", "format": "date"}, {"type": "string", "format": "date-time", "maxLength": 20}]},
        ['"2024-02-29"', '"2000-02-29"', '"2023-02-28"', '"2023-12-29"', '"1900-01-29"', '"2024-02-29T01:02:03Z"'],
        ['"2023-02-29"', '"1900-02-29"', '"2100-02-29"', '"2022-02-29T01:02:03Z"'],
    ),
    "a secret": ({"type": "string", "format": "password", "writeOnly": True}, ['"x y"'], ["1"]),
    "bytes": ({"type": "string", "format": "byte"}, ['"aGk="', '""'], ['"a"', '"hällo"']),
    "a reference": ({"type": "string", "format": "uri-reference"}, ['"/a/b?c#d"', '"a"'], ['"a b"']),
    "at least two properties": (
        record(a={"type": "integer"}, b={"type": "integer"}, c={"type": "integer"}) | {"minProperties": 2},
        ['{"a": 1, "c": 1}', '{"a": 1, "b": 1, "c": 1}'],
        ["{}", '{"b": 1}'],
    ),
    "a count that the required ones reach": (
        record(a={"type": "integer"}) | {"required": ["a"], "minProperties": 1, "maxProperties": 1},
        ['{"a": 1}'],
        ["{}"],
    ),
    "large bounds": (
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 3},
        [str(2**53 + 2)],
        [str(2**53), str(2**53 + 1), str(2**53 + 4)],
    ),
    "64 bits": ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["-7"], [str(2**63)]),
    "an older bound": ({"type": "integer", "minimum": 1, "maximum": 3, "exclusiveMinimum": True}, ["2"], ["1"]),
    "counts with a point": (
        {"type": "array", "items": {"type": "string", "maxLength": 1.0}, "minItems": 1.0, "maxItems": 2.0},
        ['["a"]', '["a", "b"]'],
        ["[]", '["ab"]', '["a", "b", "c"]'],
    ),
    "different items, their number with a point": (
        {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "maxItems": 2.0},
        ["[]", '["b", "a"]'],
        ['["a", "a"]', '["a", "b", "c"]'],
    ),
    "OpenAPI's null": ({"type": "string", "nullable": True}, ["null", '"a"'], ["1"]),
    "a reference to one of several": (
        record(a={"oneOf": [{"type": "string"}, record(b={"$ref": "#/properties/a/oneOf/1"}) | {"required": []}]}),
        ['{"a": "x"}', '{"a": {"b": {"b": {}}}}'],
        ['{"a": {"b": "x"}}'],
    ),
    "what never is": (
        record(a={"anyOf": [{"not": {}}, {"type": "string"}]}, b={"not": {}}) | {"additionalProperties": {"not": {}}},
        ['{"a": "x"}', "{}"],
        ['{"a": 1}', '{"b": 1}', '{"c": 1}'],
    ),
    "references to names that no address has": (
        record(**{name: {"$ref": f"#/$defs/{name}"} for name in ("My address", "Box[int]", "\u5730\u5740", "50%25")})
        | {"$defs": {name: {"type": "integer"} for name in ("My address", "Box[int]", "\u5730\u5740", "50%")}},
        ['{"My address": 1, "Box[int]": 2, "\u5730\u5740": 3}'],
        ['{"My address": "x"}', '{"Box[int]": "x"}', '{"\u5730\u5740": "x"}'],
    ),
    "a reference to a part of what may be null": (
        record(
            a={"nullable": True, "anyOf": [{"type": "boolean"}, {"type": "integer"}]},
            b={"$ref": "#/properties/a/anyOf/0"},
            c=record(d={"type": "string"}) | {"nullable": True},
            e={"$ref": "#/properties/c/properties/d"},
        ),
        ['{"a": null, "b": true, "c": null, "e": "x"}', '{"a": 1}', '{"c": {"d": "x"}}'],
        ['{"b": 1}', '{"b": null}', '{"e": 1}'],
    ),
    "evaluated properties": (
        {"type": "object", "properties": {"a": {"type": "integer"}}, "unevaluatedProperties": False},
        ['{"a": 1}'],
        ['{"b": 1}'],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_kinds_that_libraries_write(writer: Writer, name: str) -> None:
    schema, valid, invalid = KINDS[name]
    assert [text for text in valid if not writer.allows(form(schema), text)] == []
    assert [text for text in invalid if writer.allows(form(schema), text)] == []


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        (record(a={"type": "string", "pattern": r"(?<!x)y"}), "properties.a.pattern: "),
        (record(a={"type": "string", "pattern": r"(a)\1"}), "properties.a.pattern: "),
        ({"anyOf": [{"type": "null"}, {"not": {"type": "string"}}]}, "anyOf[1].not: "),
        (record(a={"type": "array", "contains": {"const": 1}}), "properties.a.contains: "),
        (record(a={"type": "integer"}) | {"dependentRequired": {"a": ["b"]}}, "dependentRequired: "),
        ({"$defs": {"A": {"if": {}, "then": {}}}, "$ref": "#/$defs/A"}, "$defs.A.if: "),
        (record(a={"const": 2**60 + 1}), "properties.a.const: "),
        (record(a={"enum": [[2**60 + 1]]}), "properties.a.enum: "),
        (record(a={"type": "integer", "minimum": 2**70}), "properties.a.minimum: "),
        (NAMED | {"minProperties": 2}, "minProperties: "),
        (NAMED | {"patternProperties": {"^k_[ab]$": {"type": "boolean"}}, "minProperties": 2}, "minProperties: "),
        (NAMED | {"propertyNames": {"not": {"const": "a"}}}, "propertyNames: "),
        (NAMED | {"propertyNames": {"pattern": "^a", "minLength": 3}}, "propertyNames: "),
        (NAMED | {"propertyNames": {"anyOf": [{"const": "a"}, {"minLength": 3}]}}, "propertyNames: "),
        (NAMED | {"propertyNames": {"anyOf": 5}}, "propertyNames: "),
        (record(a={"oneOf": [BEHIND, {"type": "null"}]}), "properties.a.oneOf[0].pattern: "),
        (record(a=BEHIND | {"nullable": True}), "properties.a.pattern: "),
        ({"type": "object", "minProperties": 1, "required": [{}]}, "required: must be a list of names"),
        ({"type": "array", "items": {"enum": ["a"]}, "uniqueItems": True, "minItems": -1}, "minItems: must be"),
        ({"type": "array", "maxItems": float("inf")}, "maxItems: must be a whole number"),
        (record(**{"\ud83d": {"not": {"type": "string"}}}), r"properties.\ud83d.not: "),
        ({"type": "string", "format": "byte", "pattern": "x", "allOf": 5}, "allOf: must be a list"),
        ({"oneOf": [{"type": "object", "properties": ["a"]}, {"type": "object"}]}, "oneOf[0].properties: must be"),
        (record(a={"oneOf": [{"type": "integer"}, {"type": "number"}]}), "properties.a: "),
        ({"$defs": {"\ud83d": {}}, "$ref": "#/$defs/\ud83d"}, "unexpected end of hex escape"),
        (strict(record(a={"type": "string", "format": "colour"})), "properties.a.format: "),
        (strict({"type": "array", "items": {"type": "string"}, "uniqueItems": True}), "uniqueItems: "),
        ({"$ref": "#"}, "$ref: "),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}}, "$ref"),
        (record(next={"$ref": "#"}) | {"required": ["next"]}, "properties.next.$ref: "),
        (record(a={"type": "integer", "minimum": 3, "maximum": 1}) | {"required": ["a"]}, "properties.a: "),
    ],
)  # fmt: skip
def test_what_is_refused_is_named(writer: Writer, schema: Any, place: str) -> None:
    with pytest.raises(GrammarError) as caught:
        writer.compiled(form(schema))
    message = str(caught.value)
    assert message.startswith(place) and "<state>" not in message and "\n" not in message and len(message) < 500
    assert message.encode(), "can be sent"


KEYWORDS = [
    "$ref", "additionalProperties", "allOf", "anyOf", "const", "enum", "exclusiveMinimum", "format", "items",
    "maxItems", "maxProperties", "minItems", "minProperties", "minimum", "multipleOf", "nullable", "oneOf", "pattern",
    "patternProperties", "prefixItems", "properties", "propertyNames", "required", "type", "uniqueItems", "$defs",
]  # fmt: skip
VALUES = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1.5,
        10**30,
        "a",
        "object",
        "array",
        "#/a",
        [],
        ["a"],
        [{}],
        [5],
        {},
        {"a": {}},
        {"a": 5},
        {"type": "object"},
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYWORDS), VALUES, max_size=4), st.sampled_from(["", "oneOf", "items"]))
def test_what_is_no_schema_is_refused_in_words(schema: Any, where: str) -> None:
    whole = {"": schema, "oneOf": {"oneOf": [schema, {"type": "null"}]}, "items": {"items": schema}}[where]
    with suppress(GrammarError):  # any other error would be a crash of the process that tries forms
        form(whole).notation()


def test_an_index_beyond_any_list(writer: Writer) -> None:
    with pytest.raises(GrammarError, match=r"^Pointer"):
        writer.compiled(form({"$ref": "#/anyOf/" + "9" * 5000}))


def test_alternatives_that_refer_to_each_other_do_not_grow() -> None:
    depth = 12
    names = {
        f"{letter}{level}": {
            "type": "object",
            "properties": {
                "kind": {"const": letter},
                "next": {"oneOf": [{"$ref": f"#/$defs/a{level + 1}"}, {"$ref": f"#/$defs/b{level + 1}"}]},
            },
        }
        for level in range(depth)
        for letter in "ab"
    }
    ends = {f"{letter}{depth}": {"type": "object", "properties": {"kind": {"const": letter}}} for letter in "ab"}
    schema = {"oneOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}], "$defs": names | ends}
    assert len(form(schema).notation()) < 5 * len(json.dumps(schema))


def test_a_tool_that_is_not_strict_leaves_to_others_what_no_grammar_enforces(writer: Writer) -> None:
    schema = record(a={"type": "string", "pattern": r"(a)\1"}, b={"not": {}}, c={"contains": {}, "uniqueItems": True})
    assert writer.allows(form(lenient(schema)), '{"a": "xyz"}')
    grammar = Grammar(FormKind.LARK, "start: %json " + json.dumps(lenient(schema)))
    assert writer.allows(grammar, '{"a": "xyz"}') or writer.allows(grammar, '{"a":"xyz"}')


LEFT_OUT: dict[str, tuple[Any, list[str]]] = {
    "a pattern": (record(a={"type": "string", "pattern": r"(a)\1"}), ["properties.a.pattern"]),
    "a pattern that can be enforced": (record(a={"type": "string", "pattern": EMAIL}), []),
    "keywords": (record(b={"not": {"const": 1}, "contains": {}}), ["properties.b.not", "properties.b.contains"]),
    "a condition": ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, ["if", "then"]),
    "what says nothing": (record(a={"not": False, "format": "password", "uniqueItems": False}), []),
    "a definition": ({"$ref": "#/$defs/A", "$defs": {"A": {"not": {"const": 1}}}}, ["$defs.A.not"]),
    "an item": ({"type": "array", "items": {"anyOf": [BEHIND, {"type": "null"}]}}, ["items.anyOf[0].pattern"]),
    "alternatives": ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, ["oneOf"]),
    "names": (NAMED | {"propertyNames": {"not": {"const": "x"}}}, ["propertyNames"]),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_is_left_to_others_is_told_by_its_place(writer: Writer, name: str) -> None:
    schema, places = LEFT_OUT[name]
    assert form(lenient(schema)).left_out() == places
    assert form(schema | {"x-guidance": {}}).left_out() == []
    named = lenient(schema) | {"x-draftwire": {"name": "mail", "place": "properties.to"}}
    grammar = Grammar(FormKind.LARK, f'start: %json {json.dumps(named)} "," %json {json.dumps(named)}')
    assert grammar.left_out() == [f"mail(properties.to.{place})" for place in places]


def test_the_schema_at_fault_is_named_by_its_tool(writer: Writer) -> None:
    good, bad = record(a={"type": "string"}), record(b={"type": "string", "pattern": r"(a)\1"})
    text = "start: " + " | ".join(
        "%json " + json.dumps(schema | {"x-draftwire": {"name": name, "strict": True}})
        for name, schema in (("weather", good), ("clock", bad))
    )
    with pytest.raises(GrammarError, match=r"^in the schema of 'clock': properties.b.pattern: "):
        writer.compiled(Grammar(FormKind.LARK, text))


def test_an_endless_rule_is_refused_in_a_sentence(writer: Writer) -> None:
    with pytest.raises(GrammarError, match=r"^allows no text that ends$"):
        first_mask(writer.compiled(Grammar(FormKind.LARK, "start: start")))


# ---- what is written is valid --------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "kind", "größe"])
NUMBERS = st.integers(-(10**6), 10**6)


@st.composite
def bounded(draw: Any, kind: str, least: str, most: str, low: int, high: int) -> dict[str, Any]:
    first, second = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    return {"type": kind} | draw(st.sampled_from([{}, {least: first}, {most: second}, {least: first, most: second}]))


LEAVES = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"enum": ["x", 2, None]}, {"const": {"a": [1]}}]),
    bounded("integer", "minimum", "maximum", -(2**60), 2**60),
    bounded("integer", "exclusiveMinimum", "maximum", -5, 99).filter(
        lambda each: each.get("exclusiveMinimum", -9) < each.get("maximum", 999)
    ),
    bounded("string", "minLength", "maxLength", 0, 6),
    st.sampled_from(sorted(ENFORCED_FORMATS | set(FORMAT_PATTERNS) | SAYING_NOTHING)).map(
        lambda name: {"type": "string", "format": name}
    ),
    st.sampled_from([EMAIL, "^[a-c]{2,4}$", r"^(?!a)[a-z]{1,3}$", "^x|y$"]).map(
        lambda pattern: {"type": "string", "pattern": pattern}
    ),
)


def nested(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    objects = st.dictionaries(NAMES, schemas, max_size=3).flatmap(
        lambda named: st.lists(st.sampled_from(sorted(named)), unique=True).map(
            lambda required: record(**named) | {"required": required}
        ) if named else st.just(record())
    )  # fmt: skip
    return st.one_of(
        objects,
        objects.flatmap(
            lambda each: st.integers(0, len(each["properties"])).map(lambda least: each | {"minProperties": least})
        ),
        st.tuples(schemas, st.lists(NAMES, min_size=1, unique=True)).map(
            lambda pair: {"type": "object", "additionalProperties": pair[0], "propertyNames": {"enum": pair[1]}}
        ),
        st.tuples(schemas, st.integers(0, 2)).map(
            lambda pair: {"type": "array", "items": pair[0], "minItems": pair[1], "maxItems": pair[1] + 1}
        ),
        st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, unique=True).map(
            lambda values: {"type": "array", "items": {"enum": values}, "uniqueItems": True}
        ),
        st.lists(schemas, min_size=1, max_size=3).map(lambda each: {"anyOf": each}),
        st.lists(schemas, min_size=2, max_size=3).map(
            lambda each: {"oneOf": [record(tag={"const": index}, value=one) for index, one in enumerate(each)]}
        ),
    )


@settings(max_examples=60, deadline=None)
@given(schema=st.recursive(LEAVES, nested, max_leaves=5), seed=st.integers(0, 2**32))
def test_what_is_written_is_valid(writer: Writer, schema: Any, seed: int) -> None:
    """In default strictness; `jsonschema` checks the formats that it knows, which says more than the standard asks."""
    text = writer.write(form(schema), seed)
    if text is not None:
        formats = jsonschema.FormatChecker(["date", "ipv4", "uuid"])
        jsonschema.Draft202012Validator(schema, format_checker=formats).validate(json.loads(text))


# ---- the table of the documents ------------------------------------------------------------------------------------

TABLE = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8").partition("| keyword |")[2].partition("\n\n")[0]
EXAMPLES: dict[str, Any] = {
    "type": "string", "enum": ["a"], "const": "a", "properties": {"a": {}}, "required": [],
    "additionalProperties": {}, "patternProperties": {"^a$": {}}, "items": {}, "prefixItems": [{}], "minItems": 1,
    "maxItems": 1, "minimum": 1, "maximum": 1, "exclusiveMinimum": 1, "exclusiveMaximum": 1, "multipleOf": 2,
    "minLength": 1, "maxLength": 1, "pattern": "a", "format": "date", "anyOf": [{}], "allOf": [{}], "oneOf": [{}],
    "$ref": "#/$defs/a", "$defs": {"a": {}}, "definitions": {}, "$id": "http://localhost/a", "$anchor": "a",
    "$schema": "https://json-schema.org/draft/2020-12/schema", "propertyNames": {"enum": ["a"]}, "uniqueItems": True,
    "minProperties": 1, "maxProperties": 1, "additionalItems": {}, "nullable": True, "not": {"type": "string"},
    "if": {"type": "string"}, "then": {}, "else": {}, "contains": {"const": 1}, "minContains": 1, "maxContains": 1,
    "dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": {"type": "object"}}, "dependencies": {"a": ["b"]},
    "unevaluatedProperties": {"type": "string"}, "unevaluatedItems": {"type": "string"}, "$dynamicRef": "#a",
    "$recursiveRef": "#", "$dynamicAnchor": "a", "title": "a", "description": "a", "default": 1, "examples": [1],
    "$comment": "a", "deprecated": True, "readOnly": True, "writeOnly": True, "contentEncoding": "base64",
    "contentMediaType": "a/b", "contentSchema": {}, "discriminator": {"propertyName": "a"}, "$vocabulary": {},
}  # fmt: skip
BESIDE: dict[str, Any] = {
    "$ref": {"$defs": {"a": {}}}, "then": {"if": {"type": "string"}}, "else": {"if": {"type": "string"}},
    "if": {"then": {"type": "null"}}, "minContains": {"contains": {"const": 1}},
    "maxContains": {"contains": {"const": 1}}, "additionalItems": {"items": [{}]},
}  # fmt: skip
"""What a keyword needs beside it in order to say anything."""


def rows() -> dict[str, str]:
    """Returns the keywords of the table with their first words."""
    found: dict[str, str] = {}
    for line in TABLE.splitlines()[2:]:
        names, told, *_ = [cell.strip() for cell in line.strip("| ").split("|")]
        found |= {name.strip("` "): told.split()[0].rstrip(",;.") for name in names.split(",")}
    return found


def test_the_table_has_all_keywords() -> None:
    standard = {key for each in _vocabularies() for key in each["properties"]}
    assert standard | set(UNSUPPORTED) | set(EXAMPLES) <= set(rows())
    assert set(rows()) <= set(EXAMPLES)
    assert set(rows().values()) == {"enforced", "annotation", "refused"}


def _vocabularies() -> list[Any]:
    import referencing.jsonschema
    from jsonschema_specifications import REGISTRY

    assert referencing.jsonschema
    base = "https://json-schema.org/draft/2020-12/meta/"
    names = ("core", "applicator", "unevaluated", "validation", "meta-data", "format-annotation", "content")
    return [REGISTRY.contents(base + name) for name in names]


@pytest.mark.parametrize("keyword", rows())
def test_the_table_is_true(writer: Writer, keyword: str) -> None:
    schema = {keyword: EXAMPLES[keyword]} | BESIDE.get(keyword, {})
    told = rows()[keyword]
    if told == "refused":
        with pytest.raises(GrammarError, match=r"^(if|contains|" + keyword.replace("$", r"\$") + ")"):
            writer.compiled(form(schema))
        writer.compiled(form(lenient(schema)))
        return
    writer.compiled(form(schema))
    if told == "annotation":
        assert writer.allows(form(schema), "null") and writer.allows(form(schema), '"x"')
