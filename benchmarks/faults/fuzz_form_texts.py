"""Hostile forms of output: deep, long, wide, repeated and recursive ones, in every notation."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Form = tuple[str, str, str]
"""A form's family, its notation as `StructuredOutput` names it, and its text."""
MOST_TEXT = 256 * 1024
"""Most bytes that a verifier allows; most forms stay below."""

_Link = Callable[[dict[str, Any]], Any]
_SCHEMA_LINKS: dict[str, _Link] = {
    "ref": lambda ref: ref,
    "items": lambda ref: {"type": "array", "items": ref},
    "prefixItems": lambda ref: {"type": "array", "prefixItems": [ref]},
    "properties": lambda ref: {"type": "object", "properties": {"p": ref}},
    "required": lambda ref: {"type": "object", "properties": {"p": ref}, "required": ["p"]},
    "additionalProperties": lambda ref: {"type": "object", "additionalProperties": ref},
    "patternProperties": lambda ref: {"type": "object", "patternProperties": {"^a": ref}},
    "anyOf": lambda ref: {"anyOf": [ref, {"type": "null"}]},
    "oneOf": lambda ref: {"oneOf": [ref, {"type": "null"}]},
    "allOf": lambda ref: {"allOf": [ref, {"maxLength": 9}]},
    "beside": lambda ref: {"pattern": "a"} | ref,
    "twice": lambda ref: {"allOf": [ref, ref]},
    "properties and allOf": lambda ref: {"properties": {"p": ref}, "allOf": [ref]},
    "nested": lambda ref: {"items": {"items": {"items": {"anyOf": [True, {"items": ref}]}}}},
    "if": lambda ref: {"if": ref, "then": ref, "not": ref},
}
_LARK_LINKS = (
    "{name}: {next}",
    '{name}: "x" {next} "y"',
    '{name}: {next} | "b"',
    '{name}: ({next} "b")*',
    "{name}: {next}?",
    "{name}: {next} {next}",
    '{name}: {next} | "b" {first}',
    '{name}: ("x" ({next} | /b/))? "y"',
    "{name}: {next} & /a*/",
    "{name}: ~{next}",
)
_GBNF_LINKS = (
    "{name} ::= {next}",
    '{name} ::= "x" {next} | "y"',
    '{name} ::= ({next} "b")*',
    '{name} ::= {next} | "b" {first}',
    "{name} ::= {next} {next}",
)
_GROUPS = {
    "json_schema": ('{"items":', "{}", "}"),
    "regex": ("(", "a", "b)?"),
    "lark": ("(", '"a"', ' "b")?'),
    "ebnf": ("(", '"a"', ' "b")?'),
}


def _named(inner: list[dict[str, Any]], size: int) -> str:
    """Returns a document with a long name, to which the names and references in it are relative."""
    return json.dumps({"$id": "http://a/" + "a/" * (4 * size), "anyOf": inner}, separators=(",", ":"))


_WIDE: dict[str, tuple[str, Callable[[int], str]]] = {
    "properties": ("json_schema", lambda n: json.dumps({"properties": {f"{i:x}": True for i in range(n)}})),
    "required": ("json_schema", lambda n: json.dumps({"type": "object", "required": [f"{i:x}" for i in range(n)]})),
    "const": ("json_schema", lambda n: json.dumps({"const": {f"{i:x}": 0 for i in range(n)}})),
    "prefixItems": ("json_schema", lambda n: json.dumps({"type": "array", "prefixItems": [True] * n})),
    "patterns": ("json_schema", lambda n: json.dumps({"allOf": [{"pattern": f"a{i:x}"} for i in range(n)]})),
    "anyOf": ("json_schema", lambda n: json.dumps({"anyOf": [{"const": i} for i in range(n)]})),
    "anyOf in allOf": (
        "json_schema",
        lambda n: json.dumps({"allOf": [{"anyOf": [{"maxLength": i}, {"minLength": i}]} for i in range(n)]}),
    ),
    "enum": ("json_schema", lambda n: json.dumps({"enum": [f"{i:x}" for i in range(n)]})),
    "names": ("json_schema", lambda n: _named([{"$id": f"b{i:x}/"} for i in range(n)], n)),
    "references by name": ("json_schema", lambda n: _named([{"$ref": f"b{i:x}"} for i in range(n)], n)),
    "names in names": ("json_schema", lambda n: '{"$id":"http://a/b/","items":' * (n // 50) + "{}" + "}" * (n // 50)),
    "digits": ("json_schema", lambda n: f'{{"type": "integer", "minimum": 1{"0" * n}}}'),
    "alternatives": ("regex", lambda n: "|".join(f"a{i:x}*" for i in range(n))),
    "optional letters": ("regex", lambda n: "a?" * n),
    "stars": ("regex", lambda n: "a*b*" * n),
    "optional terminals": ("lark", lambda n: "start: T\nT: " + '"a"? ' * n),
    "optional rules": ("lark", lambda n: "start: " + 'r "b"? ' * n + '\nr: "a"?'),
    "expressions": ("lark", lambda n: "start: T\nT: " + " | ".join(f"/a{i:x}/" for i in range(n))),
    "both": ("lark", lambda n: "start: T\nT: " + "/a/ & " * n + "/a+/"),
    "schemas": ("lark", lambda n: "start: " + "%json {} " * n),
    "sequence": ("ebnf", lambda n: "root ::= " + '"a" ' * n),
    "empty ones": ("ebnf", lambda n: "root ::= r | " + '"a" | ' * n + '"b"\nr ::= root'),
}
_COUNTS: dict[str, tuple[str, Callable[[int], str]]] = {
    "minItems": ("json_schema", lambda n: json.dumps({"type": "array", "minItems": n, "items": {"maxLength": n}})),
    "length": ("json_schema", lambda n: json.dumps({"type": "string", "minLength": n, "maxLength": n + 1})),
    "multipleOf": ("json_schema", lambda n: json.dumps({"type": "integer", "multipleOf": n})),
    "repeats": ("regex", lambda n: f"((a{{0,{n}}}){{0,{n}}}b{{{n}}}){{{n}}}"),
    "window": ("regex", lambda n: f"(?s:.)*a(?s:.){{{n}}}c"),
    "rules": ("lark", lambda n: f'start: r{{{n}}}\nr: "a" "b" | r{{{n},{2 * n}}}'),
    "terminals": ("lark", lambda n: f'start: T{{{n}}}\nT: ("a" "b"?){{{n}}}'),
    "groups": ("ebnf", lambda n: f'root ::= (("a" [b-z]){{{n}}} "c"){{0,{n}}}'),
}


def extremes() -> Iterator[Form]:
    """Returns one form of each family and kind, as large as a text may be."""
    for link in _SCHEMA_LINKS:
        yield _schema_chain(link, 3000)
    for line in _LARK_LINKS:
        yield _rules("lark", line, "r", 3000)
        yield _rules("lark", line, "T", 3000)
    for line in _GBNF_LINKS:
        yield _rules("ebnf", line, "r", 6000)
    for kind in _GROUPS:
        yield _groups(kind, 20_000)
    for families in (_WIDE, _COUNTS):
        for name, (kind, make) in families.items():
            yield name, kind, make(5000)


def random_form(rng: random.Random) -> Form:
    """Returns a form of a random family and size."""
    size = int(2 ** rng.uniform(1, 13))
    family = rng.randrange(6)
    if family == 0:
        return _schema_chain(rng.choice(list(_SCHEMA_LINKS)), size, rng)
    if family == 1:
        return _rules("lark", rng.choice(_LARK_LINKS), rng.choice("rT"), size, rng)
    if family == 2:
        return _rules("ebnf", rng.choice(_GBNF_LINKS), "r", size, rng)
    if family == 3:
        return _groups(rng.choice(list(_GROUPS)), size)
    if family == 4:
        name, (kind, make) = rng.choice(list(_WIDE.items()))
        return name, kind, make(size)
    name, (kind, make) = rng.choice(list(_COUNTS.items()))
    return name, kind, make(rng.choice((size, 10**6, 2**31, 2**63)))


def _schema_chain(link: str, size: int, rng: random.Random | None = None) -> Form:
    """Returns a schema with definitions that refer to one another by a kind of link: in a line, or at random with
    `rng`."""

    def ref(number: int) -> dict[str, Any]:
        return {"$ref": f"#/$defs/a{number}"}

    definitions: dict[str, Any] = {f"a{size}": {"type": "string"}}
    for number in range(size):
        following, kind = number + 1, link
        if rng is not None and rng.random() < 0.1:
            following = rng.randrange(size + 1)
            kind = rng.choice(list(_SCHEMA_LINKS))
        definitions[f"a{number}"] = _SCHEMA_LINKS[kind](ref(following))
    return f"chain of {link}", "json_schema", json.dumps(ref(0) | {"$defs": definitions}, separators=(",", ":"))


def _rules(kind: str, line: str, letter: str, size: int, rng: random.Random | None = None) -> Form:
    """Returns a grammar with rules that refer to one another, in a line or at random, like `_schema_chain`."""
    lines = [f"start: {letter}0" if kind == "lark" else f"root ::= {letter}0"]
    for number in range(size):
        following = rng.randrange(size) if rng is not None and rng.random() < 0.05 else number + 1
        lines.append(line.format(name=f"{letter}{number}", next=f"{letter}{following}", first=f"{letter}0"))
    lines.append(f'{letter}{size}: "a"' if kind == "lark" else f'{letter}{size} ::= "a"')
    return f"chain of {line}", kind, "\n".join(lines)


def _groups(kind: str, size: int) -> Form:
    begin, middle, end = _GROUPS[kind]
    text = begin * size + middle + end * size
    return "groups", kind, {"lark": f"start: {text}", "ebnf": f"root ::= {text}"}.get(kind, text)
