"""Reads what form a request's output has to have, and compiles it off the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from draftwire.v1.structured_output_pb2 import StructuredOutput
from service_runtime.errors import invalid_field
from speculative_engine.grammar import FormKind, Grammar, GrammarError
from speculative_engine.grammar_compiler import MOST_TEXT, GrammarCompiler
from speculative_engine.grammar_form import GrammarForm, TokenMisfitError
from speculative_engine.tokenizer import Tokenizer

_FIELD = "structured_output"
_MOST_CHOICES = 4096
_COMPILERS = 2
_MOST_SECONDS = 10.0
"""For compiling a form, and for waiting until others are compiled."""


class StructuredOutputReader:
    """Knows the target's vocabulary. Every fault is a ServiceError that names the field."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]):
        self._compiler = GrammarCompiler(tokenizer.to_json, vocab_size)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._threads = ThreadPoolExecutor(_COMPILERS, "grammar-compiler")

    async def read(self, asked: StructuredOutput, resumed: Sequence[int], *, ignore_eos: bool) -> GrammarForm:
        """The form, behind the output that is known already. Raises ServiceError with INVALID_ARGUMENT."""
        grammar = _grammar(asked)
        field = f"{_FIELD}.{asked.WhichOneof('form')}"
        ends = frozenset() if ignore_eos else self._eos_token_ids
        made = asyncio.get_running_loop().run_in_executor(self._threads, self._form, grammar, ends, resumed)
        try:
            return await asyncio.wait_for(made, _MOST_SECONDS)
        except TimeoutError as error:
            raise invalid_field(field, f"was not compiled within {_MOST_SECONDS:g} seconds") from error
        except GrammarError as error:
            raise invalid_field(field, str(error)) from error
        except TokenMisfitError as error:
            raise invalid_field(
                f"resume_token_ids[{error.index}]", f"does not fit {field} after the tokens before it"
            ) from error

    def _form(self, grammar: Grammar, ends: frozenset[int], resumed: Sequence[int]) -> GrammarForm:
        form = self._compiler.form(grammar, ends)
        form.resume(resumed)
        return form


def reads_ahead(asked: StructuredOutput) -> bool:
    """Whether what the form leaves no choice about is to be drafted."""
    return asked.jump_ahead if asked.HasField("jump_ahead") else True


def _grammar(asked: StructuredOutput) -> Grammar:
    kind = asked.WhichOneof("form")
    if kind is None:
        raise invalid_field(_FIELD, "has no form")
    if kind == "json_object":
        if not asked.json_object:
            raise invalid_field(f"{_FIELD}.json_object", "must be true where it is given")
        return Grammar(FormKind.JSON_SCHEMA, '{"type": "object"}')
    if kind == "choice":
        return Grammar(FormKind.CHOICE, json.dumps(_choices(asked.choice.texts), ensure_ascii=False))
    text: str = getattr(asked, kind)
    if not text:
        raise invalid_field(f"{_FIELD}.{kind}", "is empty")
    return Grammar(FormKind(kind), text)


def _choices(texts: Sequence[str]) -> list[str]:
    field = f"{_FIELD}.choice.texts"
    if not 1 <= len(texts) <= _MOST_CHOICES:
        raise invalid_field(field, f"must have 1 to {_MOST_CHOICES} texts, has {len(texts)}")
    size = 0
    for index, text in enumerate(texts):
        if not text:
            raise invalid_field(f"{field}[{index}]", "is empty")
        size += len(text.encode())
    if size > MOST_TEXT:
        raise invalid_field(field, f"has {size} bytes, at most {MOST_TEXT} are allowed")
    return list(texts)
