"""Compiles forms of output for one tokenizer, and keeps those that were asked for last.

The library (llguidance) works out what may come next while it goes, so compiling is a matter of milliseconds. What a
hostile form can take is bounded three times: its depth, time, memory and crashes in a process where it is tried first
(`grammar_trial`); the stack, which here is four times the one that it was tried with; and each step by limits of the
library's own (`grammar_library`).
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer

from speculative_engine.logits.deep_stack import run_deep
from speculative_engine.logits.grammar import Grammar, GrammarError
from speculative_engine.logits.grammar_form import GrammarForm
from speculative_engine.logits.grammar_library import allows_any, compile_form, first_mask, tokenizer_with_end
from speculative_engine.logits.grammar_trial import GrammarTrial
from speculative_engine.logits.grammar_trial_process import TRIAL_STACK

_KEPT = 32
_KEPT_TEXT = 1024 * 1024
_KEPT_MEMORY = 512 * 1024 * 1024
"""Most forms that are kept, and most bytes of text and of memory they have together."""
_STACK = 4 * TRIAL_STACK
"""Bytes of stack for compiling, which recurses. Nothing else that is done with a form does (`STEP_STACK`)."""
_QUICK = 0.05
"""Seconds: what takes no longer may be compiled while a step waits."""


class _Compiled(NamedTuple):
    """A form at its beginning. Copies of the matcher share the states that the library has found, and their limit."""

    matcher: LLMatcher
    seconds: float
    memory: int
    """Cost of compiling, in seconds and bytes."""


class GrammarCompiler:
    """Knows the target's vocabulary. Its methods may be called by several threads."""

    def __init__(self, tokenizer: Callable[[], str], vocab_size: int):
        """tokenizer: gives the text of its tokenizer.json, when the first form is compiled. vocab_size: the target's,
        with ids that no token has."""
        self._source = tokenizer
        self._vocab_size = vocab_size
        self._tokenizer: LLTokenizer | None = None
        self._loading = threading.Lock()
        self._kept: OrderedDict[Grammar, _Compiled] = OrderedDict()
        self._keeping = threading.Lock()
        self._trial = GrammarTrial(tokenizer)
        self._helper = ThreadPoolExecutor(1, "token-masks")

    def form(self, grammar: Grammar, end_token_ids: Iterable[int]) -> GrammarForm:
        """The form for one sequence, whose end these tokens may tell. Raises GrammarError."""
        return self._begin(grammar, self._find(grammar) or self._compiled(grammar), end_token_ids)

    def kept_form(self, grammar: Grammar, end_token_ids: Iterable[int]) -> GrammarForm | None:
        """The same where it is compiled already, else None."""
        kept = self._find(grammar)
        return None if kept is None else self._begin(grammar, kept, end_token_ids)

    def _begin(self, grammar: Grammar, compiled: _Compiled, end_token_ids: Iterable[int]) -> GrammarForm:
        quick = compiled.seconds < _QUICK

        def renew() -> LLMatcher:
            return self._compile(grammar) if quick else compiled.matcher.deep_copy()

        end = self._loaded().eos_token
        return GrammarForm(compiled.matcher.deep_copy(), renew, end, self._vocab_size, end_token_ids, self._helper)

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
        memory = self._trial.check(grammar)
        started = time.perf_counter()
        matcher = self._compile(grammar)
        if not allows_any(first_mask(matcher), tokenizer.eos_token):
            raise GrammarError("allows no text, or the empty one alone")
        compiled = _Compiled(matcher, time.perf_counter() - started, memory)
        with self._keeping:
            self._kept[grammar] = compiled
            while self._too_much_kept():
                self._kept.popitem(last=False)
        return compiled

    def _compile(self, grammar: Grammar) -> LLMatcher:
        """The matcher of a form that was tried."""
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
                self._tokenizer = tokenizer_with_end(self._source())
            return self._tokenizer


def _used_up(matcher: LLMatcher) -> bool:
    """Whether a limit is reached that all copies share."""
    copy = matcher.deep_copy()
    copy.compute_bitmask()
    return bool(copy.is_error())
