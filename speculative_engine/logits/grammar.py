"""The forms an output may be asked to have, in the one notation that the library of grammars reads."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from speculative_engine.logits.grammar_depth import MOST_LEVELS, gbnf_levels, lark_levels, schema_levels


class FormKind(enum.Enum):
    """How a form is told."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"
    EBNF = "ebnf"
    CHOICE = "choice"
    """The text is a JSON list of texts."""


class GrammarError(ValueError):
    """The form cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A form as it was asked for."""

    kind: FormKind
    text: str

    def check_depth(self) -> None:
        """See that the library need not go too deep for it. Raises GrammarError."""
        if self.kind is FormKind.JSON_SCHEMA:
            levels = schema_levels(self._schema())
        elif self.kind is FormKind.LARK:
            levels = self._lark_levels()
        elif self.kind is FormKind.EBNF:
            levels = gbnf_levels(self.text)
        else:
            return  # nothing in it leads elsewhere, and the library bounds the groups of an expression itself
        if levels > MOST_LEVELS:
            raise GrammarError(
                f"has references and groups that lead {levels} levels deep, at most {MOST_LEVELS} are allowed"
            )

    def _lark_levels(self) -> int:
        try:
            return lark_levels(self.text)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"has JSON in it that cannot be read: {error}") from error

    def notation(self) -> str:
        """The form in the library's notation. Raises GrammarError for text that is not even of its kind."""
        if self.kind is FormKind.JSON_SCHEMA:
            return self._json_schema()
        if self.kind is FormKind.REGEX:
            return LLMatcher.grammar_from_regex(_without_anchors(self.text))
        if self.kind is FormKind.LARK:
            return LLMatcher.grammar_from_lark(self.text)
        if self.kind is FormKind.EBNF:
            return LLMatcher.grammar_from_lark(self._lark_of_ebnf())
        texts = [json.dumps(each, ensure_ascii=False) for each in json.loads(self.text)]
        return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(texts)}\n")

    def _json_schema(self) -> str:
        self._schema()
        try:
            # One way to set white space, Python's own: no model loses itself in it, and more is left without a choice.
            return LLMatcher.grammar_from_json_schema(
                self.text, defaults={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
            )
        except ValueError as error:
            raise GrammarError(str(error)) from error

    def _schema(self) -> dict[str, Any]:
        try:
            schema = json.loads(self.text)
        except RecursionError as error:
            raise GrammarError("is not JSON that can be read: it is nested too deeply") from error
        except ValueError as error:
            raise GrammarError(f"is not JSON: {error}") from error
        if not isinstance(schema, dict):
            raise GrammarError("is not a JSON object")
        return schema

    def _lark_of_ebnf(self) -> str:
        try:
            return gbnf_to_lark(self.text)
        except Exception as error:  # the library raises no other
            raise GrammarError(str(error) or "is nested too deeply") from error


def _without_anchors(regex: str) -> str:
    """An expression is matched as a whole anyway, and the library takes no anchors."""
    start = 1 if regex.startswith("^") else 0
    slashes = len(regex[:-1]) - len(regex[:-1].rstrip("\\"))
    end = -1 if regex.endswith("$") and slashes % 2 == 0 else None
    return regex[start:end]
