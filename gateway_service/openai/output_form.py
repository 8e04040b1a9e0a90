"""The required form of a request's output: OpenAI's ``response_format`` and vLLM's structured outputs."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from draftwire import GenerateOptions
from gateway_service.http.errors import GatewayError
from gateway_service.openai.fields.checks import Strings, one_of

Schema = Annotated[dict[str, Any] | str, one_of("a JSON schema, as an object or as text")]
"""A JSON schema."""
_OWN = "x-draftwire"
"""Keyword of a schema with options of the verifier."""
_STRICT = ConfigDict(strict=True, extra="ignore", populate_by_name=True)
_OF_VLLM = frozenset(["backend", "disable_any_whitespace", "disable_fallback"])
"""Further options of vLLM's, which say how a form is enforced. White space is fixed here in any case."""


class NamedSchema(BaseModel):
    """A JSON schema with a name."""

    model_config = _STRICT

    name: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's `response_format`."""

    model_config = _STRICT

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    """The schema, as llama.cpp and others take it without a name."""


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`."""

    model_config = ConfigDict(strict=True, extra="allow", populate_by_name=True)

    json_: Schema | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    choice: Strings | None = None
    grammar: str | None = None
    structural_tag: Any = None
    whitespace_pattern: Any = None
    disable_additional_properties: bool | None = None

    def check(self) -> None:
        """Refuses what is not supported, and what is not known: it might be the form. Raises GatewayError."""
        for name, value in (self.model_extra or {}).items():
            if value not in (None, False) and name not in _OF_VLLM and not name.startswith("_"):
                param = f"structured_outputs.{name}"
                message = f"{param}: is not known; json, json_object, regex, choice and grammar are"
                raise GatewayError(message, param=param, code="unsupported_parameter")
        for name in ("structural_tag", "whitespace_pattern", "disable_additional_properties"):
            if getattr(self, name):
                param = f"structured_outputs.{name}"
                raise GatewayError(f"{param}: is not supported", param=param, code="unsupported_parameter")


class FormFields(BaseModel):
    """The fields of a request that constrain the output to a form; at most one may be set."""

    response_format: ResponseFormat | None = None
    """Form of the output as in OpenAI's API: text, json_object or json_schema."""
    structured_outputs: StructuredOutputs | None = None
    """Form of the output as in vLLM's API: json, json_object, regex, choice or grammar."""
    guided_json: Schema | None = None
    """vLLM's older name of structured_outputs.json."""
    guided_regex: str | None = None
    """vLLM's older name of structured_outputs.regex."""
    guided_choice: Strings | None = None
    """vLLM's older name of structured_outputs.choice."""
    guided_grammar: str | None = None
    """vLLM's older name of structured_outputs.grammar."""
    json_schema: Schema | None = None
    """Form of the output as in llama.cpp and SGLang: a JSON schema."""
    grammar: str | None = None
    """Form of the output as in llama.cpp: a grammar, in GBNF or Lark's notation."""
    ebnf: str | None = None
    """Form of the output as in SGLang: a grammar in EBNF, which is GBNF."""
    regex: str | None = None
    """Form of the output as in SGLang: a regular expression."""

    def form(self) -> GenerateOptions:
        """Returns the form as an option of the SDK; empty if any text will do.

        Raises:
            GatewayError: more than one form, or a JSON schema that is missing or too deep.
        """
        found = self._forms()
        if len(found) > 1:
            names = [name for name, _ in found]
            raise GatewayError(
                f"{names[-1]}: cannot be combined with {names[0]}", param=names[-1], code="invalid_value"
            )
        return found[0][1] if found else {}

    def form_name(self) -> str | None:
        """Returns the name of the field that gives the form. Raises GatewayError as `form` does."""
        return next((name for name, _ in self._forms()), None)

    def _forms(self) -> list[tuple[str, GenerateOptions]]:
        return [*self._own(), *self._structured(), *self._guided(), *self._named()]

    def _own(self) -> list[tuple[str, GenerateOptions]]:
        chosen = self.response_format
        if chosen is None:
            return []
        schemas = {"schema": chosen.schema_}
        if chosen.json_schema is not None:
            schemas["json_schema.schema"] = chosen.json_schema.schema_
        given = {f"response_format.{name}": schema for name, schema in schemas.items() if schema is not None}
        if chosen.type == "text" and given:
            name = next(iter(given))
            raise GatewayError(
                f"{name}: requires the type json_schema or json_object", param=name, code="invalid_value"
            )
        if len(given) > 1:
            first, name = given
            raise GatewayError(f"{name}: cannot be combined with {first}", param=name, code="invalid_value")
        if chosen.type == "text":
            return []
        if given:
            ((name, schema),) = given.items()
            strict = chosen.json_schema is not None and bool(chosen.json_schema.strict)
            return [("response_format", json_form(name, schema, strict=strict))]
        if chosen.type == "json_object":
            return [("response_format", {"json_object": True})]
        name = "response_format.json_schema"
        raise GatewayError(f"{name}: is required", param=name, code="missing_required_parameter")

    def _structured(self) -> list[tuple[str, GenerateOptions]]:
        chosen, name = self.structured_outputs, "structured_outputs"
        if chosen is None:
            return []
        chosen.check()
        found = _forms(name + ".", chosen.json_, chosen.regex, chosen.choice, chosen.grammar)
        if chosen.json_object:
            found.append((f"{name}.json_object", {"json_object": True}))
        return found

    def _guided(self) -> list[tuple[str, GenerateOptions]]:
        return _forms("guided_", self.guided_json, self.guided_regex, self.guided_choice, self.guided_grammar)

    def _named(self) -> list[tuple[str, GenerateOptions]]:
        found = _forms("", None, self.regex, None, self.grammar)
        if self.json_schema is not None:
            found.append(("json_schema", json_form("json_schema", self.json_schema)))
        if self.ebnf is not None:
            found.append(("ebnf", {"ebnf": self.ebnf}))
        return found


def _forms(
    prefix: str,
    schema: dict[str, Any] | str | None,
    regex: str | None,
    choice: list[str] | None,
    grammar: str | None,
) -> list[tuple[str, GenerateOptions]]:
    found: list[tuple[str, GenerateOptions]] = []
    if schema is not None:
        found.append((f"{prefix}json", json_form(f"{prefix}json", schema)))
    if regex is not None:
        found.append((f"{prefix}regex", {"regex": regex}))
    if choice is not None:
        found.append((f"{prefix}choice", {"choice": choice}))
    if grammar is not None:  # distinguished as in vLLM: EBNF rules are written "name ::=", Lark's "name:"
        found.append((f"{prefix}grammar", {"ebnf": grammar} if "::=" in grammar else {"grammar": grammar}))
    return found


def json_form(name: str, schema: dict[str, Any] | str, *, strict: bool = False) -> GenerateOptions:
    """Returns the form of a JSON schema. name: the field that has it. strict: whether nothing of it is an annotation.

    Raises:
        GatewayError: it is too deep.
    """
    if strict and isinstance(schema, dict):
        own = schema.get(_OWN)
        schema = schema | {_OWN: (own if isinstance(own, dict) else {}) | {"strict": True}}
    try:
        return {"json_schema": schema if isinstance(schema, str) else json.dumps(schema)}
    except RecursionError as error:
        raise GatewayError(f"{name}: is nested too deeply", param=name, code="invalid_value") from error
