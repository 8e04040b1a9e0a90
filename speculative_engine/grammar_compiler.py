"""Compiles forms of output for one tokenizer, and keeps those that were asked for last.

The library (llguidance) works out what may come next while it goes, so compiling is a matter of milliseconds; limits of
its own bound what a hostile form can take, of time and of memory, at the start and in every step.
"""

from __future__ import annotations

import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer as Backend

from speculative_engine.grammar import Grammar, GrammarError
from speculative_engine.grammar_form import GrammarForm, allows_any

MOST_TEXT = 256 * 1024
"""Most bytes of a form's text."""
_KEPT = 32
_KEPT_TEXT = 1024 * 1024
"""Most forms that are kept, and most bytes of text they have together."""
_END = "<|end of the form|>"
_QUICK = 0.05
"""Seconds: what takes no longer may be compiled while a step waits."""


class _Compiled(NamedTuple):
    """A form at its beginning. Copies of the matcher share the states that the library has found, and their limit."""

    matcher: LLMatcher
    seconds: float
    """What compiling it took."""


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
        self._helper = ThreadPoolExecutor(1, "token-masks")

    def form(self, grammar: Grammar, end_token_ids: Iterable[int]) -> GrammarForm:
        """The form for one sequence, whose end these tokens may tell. Raises GrammarError."""
        compiled = self._compiled(grammar)
        quick = compiled.seconds < _QUICK

        def renew() -> LLMatcher:
            return self._compile(grammar).matcher if quick else compiled.matcher.deep_copy()

        end = self._loaded().eos_token
        return GrammarForm(compiled.matcher.deep_copy(), renew, end, self._vocab_size, end_token_ids, self._helper)

    def _compiled(self, grammar: Grammar) -> _Compiled:
        with self._keeping:
            kept = self._kept.get(grammar)
        if kept is not None and not _used_up(kept.matcher):
            with self._keeping:
                if grammar in self._kept:
                    self._kept.move_to_end(grammar)
            return kept
        size = len(grammar.text.encode())
        if size > MOST_TEXT:
            raise GrammarError(f"has {size} bytes, at most {MOST_TEXT} are allowed")
        compiled = self._compile(grammar)
        with self._keeping:
            self._kept[grammar] = compiled
            while len(self._kept) > _KEPT or sum(len(each.text) for each in self._kept) > _KEPT_TEXT:
                self._kept.popitem(last=False)
        return compiled

    def _compile(self, grammar: Grammar) -> _Compiled:
        tokenizer = self._loaded()
        started = time.perf_counter()
        compiled = LLMatcher(tokenizer, grammar.notation(), log_level=0, limits=_LIMITS)
        if compiled.is_error():
            raise GrammarError(_line(compiled.get_error()))
        first = compiled.deep_copy()  # what is wrong with a form may show only when its first token is asked for
        mask = first.compute_bitmask()
        if first.is_error():
            raise GrammarError(_line(first.get_error()))
        if not allows_any(mask, tokenizer.eos_token):
            raise GrammarError("allows no text, or the empty one alone")
        return _Compiled(compiled, time.perf_counter() - started)

    def _loaded(self) -> LLTokenizer:
        """The tokenizer with one token more, which stands for the end and which no model says.

        So forms end alike whatever tokens a request takes for the end. Takes a second for a large vocabulary.
        """
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = _with_end(self._source())
            return self._tokenizer


_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_items_in_row=500,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
)


def _with_end(source: str) -> LLTokenizer:
    parts = json.loads(source)
    parts["padding"] = parts["truncation"] = None
    end = max(Backend.from_str(source).get_vocab(with_added_tokens=True).values()) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    parts["added_tokens"].append({"id": end, "content": _END, "special": True, **flags})
    try:
        return LLTokenizer(json.dumps(parts), eos_token=end)
    except ValueError as error:
        raise GrammarError(f"the target's tokenizer cannot be held to a form: {_line(str(error))}") from error


def _used_up(matcher: LLMatcher) -> bool:
    """Whether a limit is reached that all copies share."""
    copy = matcher.deep_copy()
    copy.compute_bitmask()
    return bool(copy.is_error())


def _line(message: str) -> str:
    """The library's message, on one line and of a reasonable length."""
    return " ".join(message.split())[:500]
