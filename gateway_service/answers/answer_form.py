"""The form that an answer without calls must have."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from draftwire import GenerateOptions
from gateway_service.http.errors import GatewayError

SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""White space as templates and Python write it, so that models cannot loop in it."""


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """An output format, or none."""

    name: str | None = None
    """The request's field that gives the form; None if any text will do."""
    options: GenerateOptions = field(default_factory=GenerateOptions)
    """The form as an option of the SDK."""

    def __bool__(self) -> bool:
        return bool(self.options)

    def schema(self) -> dict[str, Any] | None:
        """Returns the JSON schema of the form, None if it is of another kind.

        Raises:
            GatewayError: the schema is not a JSON object.
        """
        if self.options.get("json_object"):
            return {"type": "object"}
        asked = self.options.get("json_schema")
        if asked is None:
            return None
        try:
            found = json.loads(asked) if isinstance(asked, str) else dict(asked)
        except (ValueError, RecursionError) as error:
            raise self._refusal(f"is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise self._refusal("is not a JSON object")
        return found

    def lark(self) -> str:
        """Returns the form as a part of a rule in Lark's notation.

        Raises:
            GatewayError: it cannot be part of another grammar.
        """
        schema = self.schema()
        if schema is not None:
            return "%json " + json.dumps(schema | {"x-guidance": SPACING})
        if (regex := self.options.get("regex")) is not None:
            inner = _in_slashes(regex)
            return f"/{inner}/" if inner else '""'  # two slashes begin a comment
        if (choice := self.options.get("choice")) is not None:
            return "(" + " | ".join(json.dumps(text, ensure_ascii=False) for text in choice) + ")"
        if (grammar := self.options.get("grammar")) is not None:
            return f"%lark {{\n{grammar}\n}}"
        raise self._refusal("a grammar in GBNF cannot be combined with tools; one in Lark's notation can")

    def _refusal(self, reason: str) -> GatewayError:
        return GatewayError(f"{self.name}: {reason}", param=self.name, code="invalid_value")


def _in_slashes(regex: str) -> str:
    """Returns an expression as Lark writes it between slashes, without anchors: it matches whole texts anyway."""
    escaped = False
    letters: list[str] = []
    for letter in regex:
        letters.append("\\/" if letter == "/" and not escaped else "\\n" if letter == "\n" else letter)
        escaped = letter == "\\" and not escaped
    ends = regex.endswith("$") and (len(regex[:-1]) - len(regex[:-1].rstrip("\\"))) % 2 == 0
    return "".join(letters[regex.startswith("^") : -1 if ends else None])
