"""The rules of a grammar in Lark's notation, with markers that may be tokens of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway_service.answers.answer_form import SPACING
from gateway_service.answers.tool import Tool
from gateway_service.http.errors import GatewayError

_MOST_LETTERS = 1 << 19
"""The verifier takes half as many of a form. Parts of rules count where they are written, and with their rule again."""


class LarkRules:
    """Collects the rules of one grammar."""

    def __init__(self, marker_ids: Mapping[str, int]) -> None:
        """marker_ids: markers that are tokens of their own, which no text in a rule can stand for."""
        self._ids = marker_ids
        longest_first = sorted(marker_ids, key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._rules = ["TEXT: /(.|\\n)*/", "GAP: /\\n{1,2}/"]
        self._named = 0
        self._letters = 0

    def add(self, rule: str) -> None:
        """Adds a rule with its name. Raises GatewayError for too large a grammar, as whatever adds to it."""
        self.count(len(rule))
        self._rules.append(rule)

    def count(self, letters: int) -> None:
        """Counts what is written, or read of a schema.

        Raises:
            GatewayError: the grammar would be too large.
        """
        self._letters += letters
        if self._letters > _MOST_LETTERS:
            raise GatewayError(
                f"tools: their grammar exceeds {_MOST_LETTERS} characters", param="tools", code="invalid_value"
            )

    def new(self, body: str) -> str:
        """Adds a rule and returns its new name."""
        name = self.reserve()
        self.define(name, body)
        return name

    def reserve(self) -> str:
        """Returns a new name for a rule, which is defined later."""
        self._named += 1
        return f"r{self._named}"

    def define(self, name: str, body: str) -> None:
        """Adds the rule of a reserved name."""
        self.add(f"{name}: {body}")

    def until(self, name: str, end: str) -> None:
        """Adds a rule for text that ends with `end`."""
        if self._markers.search(end):
            self.add(f"{name}: TEXT {self.terms(end.lstrip())}")
        else:
            self.add(f"{name}[lazy]: TEXT {literal(end)}")

    def terms(self, text: str) -> str:
        """Returns a text as a part of a rule: literals, and tokens for the markers in it."""
        found: list[str] = []
        at = 0
        for match in self._markers.finditer(text):
            found += [literal(text[at : match.start()])] * (match.start() > at)
            found.append(f"<[{self._ids[match[0]]}]>")
            at = match.end()
        found += [literal(text[at:])] * (len(text) > at)
        return " ".join(found)

    def tool_term(self, tool: Tool, schema: Mapping[str, Any] | None = None, place: str = "") -> str:
        """Returns JSON of a tool's arguments, or of a part of them, as a part of a rule. Errors name the tool, and a
        strict one is refused for what no grammar enforces; of another the verifier reports what was left out. schema:
        that of the part. place: where in the tool's schema that is."""
        spacing = SPACING if tool.strict else SPACING | {"lenient": True}
        own = {"name": tool.name, "strict": tool.strict} | ({"place": place} if place else {})
        whole = {**(tool.schema if schema is None else schema), "x-guidance": spacing, "x-draftwire": own}
        term = "%json " + json.dumps(whole)
        self.count(len(term))
        return term

    def grammar(self, start: str) -> str:
        """Returns the grammar. start: body of its first rule."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def literal(text: str) -> str:
    """Returns a text as Lark quotes it."""
    return json.dumps(text, ensure_ascii=False)
