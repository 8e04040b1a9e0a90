"""The rules of a grammar in Lark's notation, with markers that may be tokens of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.answers.answer_form import SPACING


class LarkRules:
    """Collects the rules of one grammar."""

    def __init__(self, marker_ids: Mapping[str, int]) -> None:
        """marker_ids: markers that are tokens of their own, which no text in a rule can stand for."""
        self._ids = marker_ids
        longest_first = sorted(marker_ids, key=len, reverse=True)
        self._markers = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._rules = ["TEXT: /(.|\\n)*/", "GAP: /\\n{1,2}/"]
        self._named = 0

    def add(self, rule: str) -> None:
        """Adds a rule with its name."""
        self._rules.append(rule)

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
        self._rules.append(f"{name}: {body}")

    def until(self, name: str, end: str) -> None:
        """Adds a rule for text that ends with `end`."""
        if self._markers.search(end):
            self._rules.append(f"{name}: TEXT {self.terms(end.lstrip())}")
        else:
            self._rules.append(f"{name}[lazy]: TEXT {literal(end)}")

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

    def grammar(self, start: str) -> str:
        """Returns the grammar. start: body of its first rule."""
        return "\n".join([f"start: {start}", *self._rules]) + "\n"


def literal(text: str) -> str:
    """Returns a text as Lark quotes it."""
    return json.dumps(text, ensure_ascii=False)


def json_term(schema: Mapping[str, Any], *, strict: bool, name: str) -> str:
    """Returns JSON of a schema as a part of a rule. strict: whether what no grammar enforces is refused. name: by which
    errors call the schema."""
    spacing = SPACING if strict else SPACING | {"lenient": True}
    own = {"name": name, "strict": strict}
    return "%json " + json.dumps({**schema, "x-guidance": spacing, "x-draftwire": own})
