"""Reads the output form of a request and compiles it off the event loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from draftwire.v1.structured_output_pb2 import StructuredOutput
from draftwire_core.engine.logits.grammar import FormKind, Grammar, GrammarError
from draftwire_core.engine.logits.grammar_compiler import GrammarCompiler
from draftwire_core.engine.logits.grammar_form import GrammarForm, TokenMisfitError
from draftwire_core.engine.text.tokenizer import Tokenizer
from draftwire_core.runtime.errors import invalid_field
from verifier_service.reading.text_pool import LaneLimits, TextPool

FormT = TypeVar("FormT", bound=GrammarForm | None)

_FIELD = "structured_output"
_MOST_CHOICES = 4096
_MOST_TEXT = 256 * 1024
"""Most bytes of an output form."""
_COMPILING = (LaneLimits(1 << 12, 1 << 18), LaneLimits(float("inf"), 1 << 22))
"""Lanes for compiling: no schema of a few lines waits for a grammar of many pages. In a lane peers take turns."""
_KEPT = (LaneLimits(float("inf"), 1 << 24),)
"""Lane for forms compiled earlier, and for the resumed tokens under them: these do not wait for compilation."""
_WAIT_SECONDS = 10.0
"""Longest time a form waits for others before its request is refused."""
_TOKEN_BYTES = 4


class StructuredOutputReader:
    """Reads output forms for the target's vocabulary. Every fault is a ServiceError that names the field."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Iterable[int]):
        encode = partial(tokenizer.encode, add_special_tokens=False)
        self._compiler = GrammarCompiler(tokenizer.token_table, vocab_size, encode)
        self._eos_token_ids = frozenset(eos_token_ids)
        self._kept = TextPool(lanes=_KEPT, wait_seconds=_WAIT_SECONDS)
        self._compiling = TextPool(lanes=_COMPILING, wait_seconds=_WAIT_SECONDS)

    async def read(
        self, asked: StructuredOutput, resumed: Sequence[int], *, ignore_eos: bool, peer: str = ""
    ) -> GrammarForm:
        """Returns the form that a peer asks for, advanced past the resumed output.

        Raises ServiceError with INVALID_ARGUMENT, or AT_CAPACITY if too many forms are being compiled.
        """
        grammar = _grammar(asked)
        field = f"{_FIELD}.{asked.WhichOneof('form')}"
        ends = frozenset() if ignore_eos else self._eos_token_ids
        size = len(grammar.text.encode())

        def read(make: Callable[[Grammar, Iterable[int]], FormT]) -> FormT:
            form = make(grammar, ends)
            if form is not None:
                form.resume(resumed)
            return form

        try:
            kept = await self._kept.run(
                lambda: read(self._compiler.kept_form), size + _TOKEN_BYTES * len(resumed), peer
            )
            if kept is not None:
                return kept
            return await self._compiling.run(lambda: read(self._compiler.form), size, peer)
        except GrammarError as error:
            raise invalid_field(field, str(error)) from error
        except TokenMisfitError as error:
            raise invalid_field(
                f"resume_token_ids[{error.index}]", f"does not fit {field} after the tokens before it"
            ) from error

    def prepare(self) -> None:
        """Makes what forms need of a large vocabulary, see `GrammarCompiler.prepare`."""
        self._compiler.prepare()

    def close(self) -> None:
        """Ends the threads."""
        self._kept.close()
        self._compiling.close()


def reads_ahead(asked: StructuredOutput) -> bool:
    """Whether tokens that the form determines are to be drafted."""
    return asked.jump_ahead if asked.HasField("jump_ahead") else True


def _grammar(asked: StructuredOutput) -> Grammar:
    kind = asked.WhichOneof("form")
    if kind is None:
        raise invalid_field(_FIELD, "must have a form")
    if kind == "json_object":
        if not asked.json_object:
            raise invalid_field(f"{_FIELD}.json_object", "must be true if given")
        return Grammar(FormKind.JSON_SCHEMA, '{"type": "object"}')
    if kind == "choice":
        return Grammar(FormKind.CHOICE, json.dumps(_choices(asked.choice.texts), ensure_ascii=False))
    text: str = getattr(asked, kind)
    if not text:
        raise invalid_field(f"{_FIELD}.{kind}", "is empty")
    _check_size(f"{_FIELD}.{kind}", len(text.encode()))
    return Grammar(FormKind(kind), text)


def _choices(texts: Sequence[str]) -> list[str]:
    field = f"{_FIELD}.choice.texts"
    if not 1 <= len(texts) <= _MOST_CHOICES:
        raise invalid_field(field, f"must have 1 to {_MOST_CHOICES} texts, got {len(texts)}")
    size = 0
    for index, text in enumerate(texts):
        if not text:
            raise invalid_field(f"{field}[{index}]", "is empty")
        size += len(text.encode())
    _check_size(field, size)
    return list(texts)


def _check_size(field: str, size: int) -> None:
    if size > _MOST_TEXT:
        raise invalid_field(field, f"has {size} bytes; at most {_MOST_TEXT} are allowed")
