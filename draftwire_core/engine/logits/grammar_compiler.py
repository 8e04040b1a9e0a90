"""Compiles output formats for one tokenizer, and caches the most recently used.

The library (llguidance) computes allowed tokens lazily, so compiling takes milliseconds. A hostile form is contained in
three ways. It is first tried in a separate process, which bounds its depth, time and memory and absorbs crashes
(`grammar_trial`). It is compiled with four times the stack of that trial. Each step has limits of the library's own
(`grammar_library`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer

from draftwire_core.engine.logits.grammar import Grammar, GrammarError
from draftwire_core.engine.logits.grammar_form import GrammarForm
from draftwire_core.engine.logits.grammar_library import (
    allows_any,
    compile_form,
    first_mask,
    run_deep,
    tokenizer_with_end,
)
from draftwire_core.engine.logits.grammar_trial import GrammarTrial
from draftwire_core.engine.logits.grammar_trial_process import TRIAL_STACK
from draftwire_core.engine.text.token_table import TokenTable
from draftwire_core.engine.text.vocabulary import VocabularyError

_KEPT = 32
_KEPT_TEXT = 1024 * 1024
_KEPT_MEMORY = 512 * 1024 * 1024
"""Limits of the cache: number of forms, their bytes of text, and their bytes of memory."""
_STACK = 4 * TRIAL_STACK
"""Bytes of stack for compiling, the only operation on a form that recurses (compare `STEP_STACK`)."""
_LARGE = 32_768
"""Tokens of a vocabulary from which forms are prepared at the start: of fewer the first form makes them in a moment."""
_QUICK = 0.05
"""Seconds that compiling may take at most to be done while a step waits."""


class _Compiled(NamedTuple):
    """A compiled form. Copies of its matcher share the states that the library has found, and their limit."""

    matcher: LLMatcher
    seconds: float
    """Time that compiling took."""
    memory: int
    """Bytes of memory that compiling took."""
    left_out: tuple[str, ...]
    """Places of its parts that are not enforced."""


class GrammarCompiler:
    """Compiles forms for the target's vocabulary. Several threads may call its methods."""

    def __init__(
        self, tokens: Callable[[], TokenTable], vocab_size: int, encode: Callable[[str], list[int]] | None = None
    ):
        """tokens: returns the target's tokens; called for the first form or by `prepare`. vocab_size: the target's,
        including ids without a token. encode: the tokenizer's choice of tokens for a text, for those that a form
        determines."""
        self._source = tokens
        self._encode = encode
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._loading = threading.Lock()
        self._kept: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._keeping = threading.Lock()
        self._trial = GrammarTrial(tokens)
        self._helper = ThreadPoolExecutor(1, "token-masks")

    def prepare(self) -> None:
        """Makes what forms need of a large vocabulary; for a small one the first form does. Call it before requests are
        served, since it holds the interpreter for up to a second. A tokenizer without forms is no error here.
        """
        if self._vocab_size < _LARGE:
            return
        try:
            self._loaded()
        except GrammarError:
            return  # each form is refused by this reason
        self._trial.start()

    def form(self, grammar: Grammar, end_token_ids: Iterable[int]) -> GrammarForm:
        """The form for one sequence, compiled if necessary. end_token_ids: tokens that end it. Raises GrammarError."""
        return self._begin(grammar, self._find(grammar) or self._compiled(grammar), end_token_ids)

    def kept_form(self, grammar: Grammar, end_token_ids: Iterable[int]) -> GrammarForm | None:
        """The form for one sequence if it is in the cache, else None."""
        kept = self._find(grammar)
        return None if kept is None else self._begin(grammar, kept, end_token_ids)

    def _begin(self, grammar: Grammar, compiled: _Compiled, end_token_ids: Iterable[int]) -> GrammarForm:
        quick = compiled.seconds < _QUICK

        def renew() -> LLMatcher:
            return self._compile(grammar) if quick else compiled.matcher.deep_copy()

        end = self._loaded().eos_token
        matcher, ids = compiled.matcher.deep_copy(), end_token_ids
        return GrammarForm(
            matcher, renew, end, self._vocab_size, ids, self._helper, grammar=grammar, left_out=compiled.left_out
        )

    def _find(self, grammar: Grammar) -> _Compiled | None:
        with self._keeping:
            kept = self._kept.get(grammar)
        if kept is None or _used_up(kept.matcher):
            return None
        with self._keeping:
            if grammar in self._kept:
                self._kept.move_to_end(grammar)
        return kept

    def _compiled(self, grammar: Grammar) -> _Compiled:
        tokenizer = self._loaded()
        tried = self._trial.check(grammar)
        started = time.perf_counter()
        matcher = self._compile(grammar)
        if not allows_any(first_mask(matcher), tokenizer.eos_token):
            raise GrammarError("allows no text, or only the empty one")
        compiled = _Compiled(matcher, time.perf_counter() - started, *tried)
        with self._keeping:
            self._kept[grammar] = compiled
            while self._too_much_kept():
                self._kept.popitem(last=False)
        return compiled

    def _compile(self, grammar: Grammar) -> LLMatcher:
        """Compiles a form that has passed its trial."""
        return run_deep(lambda: compile_form(self._loaded(), grammar), _STACK)

    def _too_much_kept(self) -> bool:
        return (
            len(self._kept) > _KEPT
            or sum(len(each.text) for each in self._kept) > _KEPT_TEXT
            or sum(each.memory for each in self._kept.values()) > _KEPT_MEMORY
        )

    def _loaded(self) -> LLTokenizer:
        with self._loading:
            if self._tokenizer is None:
                try:
                    self._tokenizer = tokenizer_with_end(self._source(), self._encode)
                except VocabularyError as error:
                    raise GrammarError(f"the target's tokenizer supports no output formats: {error}") from error
            return self._tokenizer


def _used_up(matcher: LLMatcher) -> bool:
    """Whether the limit that all copies of a matcher share is reached."""
    copy = matcher.deep_copy()
    copy.compute_bitmask()
    return bool(copy.is_error())
