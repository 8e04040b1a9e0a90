"""Bounds the recursion depth that a form needs in the grammar library (llguidance), before the library sees it.

While the library compiles a rule, definition or schema, it compiles recursively whatever that refers to, each item
once. The depth is therefore bounded by the longest chain of references, including the nesting along it; a cycle counts
with all its members. Nothing here recurses, and the time is linear in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urljoin

from draftwire_core.engine.logits.longest_path import longest_path

MOST_LEVELS = 2000
"""Longest allowed chain of references and nesting. A level takes the library at most 6 KiB of stack (`run_deep`)."""

_LARK = re.compile(
    r"""(?P<space>[ \t\r]+|(?:\#|//)[^\n]*)
    |(?P<line>\n)
    |"[^"\\\n]*(?:\\.[^"\\\n]*)*"?
    |/[^/\\]*(?:\\.[^/\\]*)*/?
    |%(?P<block>json|regex|llguidance)\b
    |(?P<inner>%lark\b)
    |[!?]*(?P<name>_?[a-z][_a-z0-9-]*|_?[A-Z][_A-Z0-9-]*)
    |(?P<double>::)
    |(?P<colon>:)
    |(?P<open>[(\[{~])
    |(?P<close>[)\]}])
    |.""",
    re.VERBOSE,
)
"""Tokens of Lark's notation. A string's closing mark is optional: searching for a missing one at every opening mark
would take quadratic time."""
_GBNF = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
    |"[^"\\]*(?:\\.[^"\\]*)*"?
    |\[[^\]\\]*(?:\\.[^\]\\]*)*\]?
    |(?P<name>[\w-]+)(?=(?P<defines>[ \t]*(?:\#[^\n]*)?::=)?)
    |(?P<open>\()
    |(?P<close>\))
    |.""",
    re.VERBOSE | re.DOTALL,
)
_DECODER = json.JSONDecoder()


def schema_levels(schema: Any) -> int:
    """Returns the levels of a JSON schema: of nested objects, and of references (`$ref`) between them."""
    document = _Document(schema)
    successors: list[list[int]] = [[] for _ in document.heights]
    """Successors of the objects, followed by those of the references by spelling: the library compiles an object again
    for each spelling of its address."""
    weights = [0] * len(successors)
    numbers: dict[tuple[str, str], int] = {}
    referred: set[int] = {0}
    for _, base, reference in document.references:
        spelled = (base, reference)
        if spelled in numbers:
            continue
        numbers[spelled] = len(successors)
        target = document.find(base, reference)
        successors.append([] if target is None else [target])
        weights.append(0 if target is None else document.heights[target])
        if target is not None:
            referred.add(target)
    # An object without references to it is merged with the object that contains it.
    nearest = [0] * len(document.heights)
    for number, parent in enumerate(document.parents):
        nearest[number] = number if number in referred else nearest[parent]
        if number in referred and number:
            successors[nearest[parent]].append(number)
    for holder, base, reference in document.references:
        successors[nearest[holder]].append(numbers[base, reference])
    return document.heights[0] + longest_path(successors, weights)


def lark_levels(text: str) -> int:
    """Returns the levels of a grammar in Lark's notation: of references between rules and terminals, and of the groups
    and schemas in them.

    Raises:
        ValueError, RecursionError: JSON in the grammar cannot be read.
    """
    rules = _Rules()
    line: str | None = None
    """The first name on the line, which the line defines if a colon follows."""
    begun = False
    at, end = 0, len(text)
    while at < end:
        found = _LARK.match(text, at)
        if found is None:  # not reached: the expression matches any character
            break
        at = found.end()
        kind = found.lastgroup
        if kind == "name":
            if begun:
                rules.refers(found["name"])
            else:
                line = found["name"]
        elif kind == "colon":
            if line is not None:
                rules.begins(line)
            line = None
        elif kind == "open":
            rules.opens()
        elif kind == "close":
            rules.closes()
        elif kind == "inner":
            rules.refers("start")
        elif kind == "block":
            at = rules.holds(text, at, found["block"] == "json")
        if kind == "line":
            if line is not None:
                rules.refers(line)
            begun, line = False, None
        elif kind != "space":
            begun = True
    if line is not None:
        rules.refers(line)
    return rules.levels()


def schema_blocks(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yields the JSON schemas in a grammar in Lark's notation, each with its first and last index.

    Raises:
        ValueError, RecursionError: JSON in the grammar cannot be read.
    """
    at, end = 0, len(text)
    while at < end and (found := _LARK.match(text, at)) is not None:
        at = found.end()
        if found.lastgroup == "block":
            while at < end and text[at].isspace():
                at += 1
            begin = at
            value, at = _DECODER.raw_decode(text, begin)
            if found["block"] == "json":
                yield begin, at, value


def gbnf_levels(text: str) -> int:
    """Returns the levels of a grammar in GBNF: of references between rules, and of the groups in them."""
    rules = _Rules()
    for found in _GBNF.finditer(text):
        name = found["name"]
        if name is not None:
            if found["defines"] is None:
                rules.refers(name)
            else:
                rules.begins(name)
        elif found.lastgroup == "open":
            rules.opens()
        elif found.lastgroup == "close":
            rules.closes()
    return rules.levels()


class _Document:
    """A JSON value as a list of its objects, outer ones first."""

    def __init__(self, value: Any) -> None:
        self.parents: list[int] = []
        """Number of the object that contains each object; 0 for the outermost."""
        self.heights: list[int] = []
        """Levels of nested objects from each object on, itself included."""
        self.references: list[tuple[int, str, str]] = []
        """Each `$ref`: the object that contains it, the base of its address, and the address."""
        self._numbers: dict[int, int] = {}
        """Number of each object, by the identity of the object, which `_root` keeps alive."""
        self._resources: dict[str, Any] = {"": value}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._root = value
        draft = value.get("$schema") if isinstance(value, dict) else None
        self._id = "id" if isinstance(draft, str) and "draft-04" in draft else "$id"
        self._read(value)

    def _read(self, value: Any) -> None:
        depths: list[int] = []
        stack: list[tuple[Any, int, int, str]] = [(value, 0, 0, "")]
        while stack:
            value, parent, depth, base = stack.pop()
            if isinstance(value, dict):
                base = self._base(value, base)
                number = len(self.parents)
                self._numbers[id(value)] = number
                self.parents.append(parent)
                depths.append(depth)
                reference = value.get("$ref")
                if isinstance(reference, str):
                    self.references.append((number, base, reference))
                parent, depth = number, depth + 1
                stack.extend((each, parent, depth, base) for each in value.values() if isinstance(each, dict | list))
            elif isinstance(value, list):
                stack.extend((each, parent, depth, base) for each in value if isinstance(each, dict | list))
        if not depths:  # no object at all
            self.parents, depths = [0], [0]
        deepest = depths[:]
        for number in range(len(depths) - 1, 0, -1):
            parent = self.parents[number]
            deepest[parent] = max(deepest[parent], deepest[number])
        self.heights = [most - depth + 1 for most, depth in zip(deepest, depths, strict=True)]

    def _base(self, value: dict[str, Any], base: str) -> str:
        """The base of addresses in an object; records the object's identifier and anchors."""
        name = value.get(self._id)
        if isinstance(name, str):
            address, _, anchor = _joined(base, name).partition("#")
            if address != base:
                base = address
                self._resources.setdefault(base, value)
            if anchor:
                self._anchors.setdefault((base, anchor), value)
        for key in ("$anchor", "$dynamicAnchor"):
            name = value.get(key)
            if isinstance(name, str):
                self._anchors.setdefault((base, name), value)
        return base

    def find(self, base: str, reference: str) -> int | None:
        """The number of the object that a reference points to; None if there is none in the document."""
        address, _, fragment = _joined(base, reference).partition("#")
        if fragment and not fragment.startswith("/"):
            return self._numbers.get(id(self._anchors.get((address, unquote(fragment)))))
        value = self._resources.get(address)
        for spelled in fragment.split("/")[1:]:
            part = unquote(spelled).replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, list) and part.isdecimal() and int(part) < len(value):
                value = value[int(part)]
            else:
                return None
        return self._numbers.get(id(value))


def _joined(base: str, reference: str) -> str:
    """Resolves a reference against a base address."""
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference  # not an address; the library refuses it


class _Rules:
    """The rules of a grammar, collected while it is read."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._successors: list[set[int]] = []
        self._weights: list[int] = []
        self._depth = 0
        self._current = self._number("")

    def _number(self, name: str) -> int:
        number = self._numbers.setdefault(name, len(self._successors))
        if number == len(self._successors):
            self._successors.append(set())
            self._weights.append(1)
        return number

    def begins(self, name: str) -> None:
        """Begins the definition of a rule."""
        self._current = self._number(name)
        self._depth = 0

    def refers(self, name: str) -> None:
        """Adds a reference of the current rule to another."""
        self._successors[self._current].add(self._number(name))

    def opens(self) -> None:
        """Begins a group."""
        self._depth += 1
        self._weights[self._current] = max(self._weights[self._current], self._depth + 1)

    def closes(self) -> None:
        """Ends a group."""
        self._depth = max(0, self._depth - 1)

    def holds(self, text: str, at: int, schema: bool) -> int:
        """Reads a JSON value that is part of the rule; returns its end. Raises ValueError, RecursionError."""
        while at < len(text) and text[at].isspace():
            at += 1
        value, end = _DECODER.raw_decode(text, at)
        if schema:
            self._weights[self._current] += schema_levels(value)
        return end

    def levels(self) -> int:
        return longest_path([list(each) for each in self._successors], self._weights)
