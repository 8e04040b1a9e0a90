"""Output forms that once crashed a service, or that exceed its limits."""

from __future__ import annotations

import json


def references(count: int) -> str:
    """Returns a JSON schema whose definitions refer to one another in a chain."""
    definitions: dict[str, object] = {f"a{n}": {"$ref": f"#/$defs/a{n + 1}"} for n in range(count)}
    return json.dumps({"$ref": "#/$defs/a0", "$defs": definitions | {f"a{count}": {"type": "string"}}})


def lark_rules(count: int, line: str = "{name}: {next}", letter: str = "r") -> str:
    """Returns a Lark grammar whose rules refer to one another in a chain; with a capital letter, its terminals do."""
    lines = [line.format(name=f"{letter}{n}", next=f"{letter}{n + 1}") for n in range(count)]
    return "\n".join([f"start: {letter}0", *lines, f'{letter}{count}: "a"'])


def gbnf_rules(count: int) -> str:
    """Returns a GBNF grammar whose rules refer to one another in a chain."""
    return "\n".join(["root ::= r0", *(f"r{n} ::= r{n + 1}" for n in range(count)), f'r{count} ::= "a"'])


def patterns() -> str:
    """Returns a 1 kB JSON schema whose compilation exceeds the memory limit of a form."""
    return json.dumps({"allOf": [{"pattern": f"a{n}"} for n in range(64)]})


def long_names(keyword: str) -> str:
    """Returns a JSON schema with a long base name, to which names (`$id`) or references (`$ref`) are relative:
    resolving them exceeds the time limit of a form."""
    return json.dumps({"$id": "http://a/" + "a/" * 20_000, "anyOf": [{keyword: f"b{n}/"} for n in range(6000)]})
