"""Output forms that once crashed a service, or that exceed its limits."""

from __future__ import annotations

import json


def references(count: int) -> str:
    """Returns a JSON schema whose definitions lead to one another in a chain."""
    definitions: dict[str, object] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(count)}
    return json.dumps({"$ref": "#/$defs/a0", "$defs": definitions | {f"a{count}": {"type": "string"}}})


def lark_rules(count: int, line: str = "{name}: {next}", letter: str = "r") -> str:
    """Returns a grammar in Lark's notation whose rules lead to one another; with a capital letter its terminals do."""
    lines = [line.format(name=f"{letter}{n}", next=f"{letter}{n + 1}") for n in range(count)]
    return "\n".join([f"start: {letter}0", *lines, f'{letter}{count}: "a"'])


def gbnf_rules(count: int) -> str:
    """Returns a grammar in GBNF whose rules lead to one another."""
    return "\n".join(["root ::= r0", *(f"r{n} ::= r{n + 1}" for n in range(count)), f'r{count} ::= "a"'])


def patterns() -> str:
    """Returns a JSON schema of a kilobyte that takes more memory to compile than a form may."""
    return json.dumps({"allOf": [{"pattern": f"a{n}"} for n in range(64)]})


def long_names(keyword: str) -> str:
    """Returns a JSON schema with a long name, to which names (`$id`) or references (`$ref`) are relative: to work them
    out takes more time than a form may."""
    return json.dumps({"$id": "http://a/" + "a/" * 20_000, "anyOf": [{keyword: f"b{n}/"} for n in range(6000)]})
