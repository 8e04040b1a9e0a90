"""The grammar library (llguidance), with limits on a form's resources.

Does not import torch, since the trial process (`grammar_trial_process`) imports this module.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from draftwire_core.engine.logits.grammar import Grammar, GrammarError
from draftwire_core.engine.text.token_table import TokenTable

_NO_TOKEN = "NoExtensionBias"
"""The library's name for a form under which no first token is possible."""
_END = b"<|end of the form|>"
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_items_in_row=500,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
)


class _Tokens(TokenizerWrapper):
    """A table of tokens in the shape that the library expects (its `TokenizerWrapper`).

    The library's own reading of a tokenizer.json takes three times as long, hundreds of megabytes for a large
    vocabulary, and holds the interpreter meanwhile.
    """

    def __init__(self, table: TokenTable, encode: Callable[[str], list[int]] | None) -> None:
        # The class's own __init__ takes another kind of object.
        self.is_tokenizer_wrapper = True
        self.bos_token_id = None
        self._spellings = table.spellings
        self._specials = frozenset(table.specials)
        self._encode = encode
        self.eos_token_id = len(table.spellings)
        self.tokens = [*table.spellings, _END]
        self.special_token_ids = [*table.specials, self.eos_token_id]
        self.library: LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """Returns tokens that spell a text which a form determines, as the tokenizer chooses them if that is known."""
        if self._encode is not None:
            tokens = self._encode(text)
            spelled = b"".join(self._spellings[token] for token in tokens)
            if spelled == text.encode() and self._specials.isdisjoint(tokens):
                return tokens  # a tokenizer may add a space at the beginning, change accents, or take names of specials
        assert self.library is not None, "forms are compiled with it"
        greedy: list[int] = self.library.greedy_tokenize(text)
        return greedy


def tokenizer_with_end(table: TokenTable, encode: Callable[[str], list[int]] | None = None) -> LLTokenizer:
    """Returns the library's tokenizer for a table, with an additional token for the end that no model produces.

    Forms then end alike, whichever tokens end a request. Takes a second for a large vocabulary.

    Args:
        table: the tokens.
        encode: the tokenizer's own choice of tokens for a text; by default the longest that fit are taken.

    Raises:
        GrammarError: the library cannot work with these tokens.
    """
    tokens = _Tokens(table, encode)
    try:
        tokens.library = LLTokenizer(tokens)
    except ValueError as error:
        raise GrammarError(f"the target's tokenizer supports no output formats: {one_line(str(error))}") from error
    tokens.tokens = []  # the library has copied them
    return tokens.library


def compile_form(tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """Compiles a form; returns its matcher at the beginning. Needs a deep stack (`run_deep`).

    Raises:
        GrammarError: the form is invalid or not supported.
    """
    compiled = LLMatcher(tokenizer, grammar.notation(), log_level=0, limits=LIMITS)
    if compiled.is_error():
        raise GrammarError(one_line(grammar.located(compiled.get_error())))
    return compiled


def first_mask(matcher: LLMatcher) -> bytes:
    """Returns the mask of the tokens that may come first, a bit each.

    Raises:
        GrammarError: the form has an error that compiling did not show.
    """
    first = matcher.deep_copy()
    mask: bytes = first.compute_bitmask()
    if first.is_error():
        raise GrammarError(one_line(first.get_error()))
    return mask


def allows_any(mask: bytes, end: int) -> bool:
    """Whether a mask, a bit for each token, allows any token below the one for the end."""
    place, bit = divmod(end, 8)
    return any(mask[:place]) or bool(mask[place] & ((1 << bit) - 1))


def one_line(message: str) -> str:
    """Returns a message of the library on one line, cut at 500 characters, and without its state."""
    message = message.partition("<state>")[0].strip()
    if message == _NO_TOKEN:
        return "allows no text that ends"
    return " ".join(message.split())[:500]


ResultT = TypeVar("ResultT")

_SETTING = threading.Lock()
"""Held while the stack size is set, which applies to every thread that the process starts meanwhile."""


def run_deep(function: Callable[[], ResultT], stack_bytes: int) -> ResultT:
    """Runs a function in a thread with a stack of this size; returns or raises what the function does.

    The stack is only address space until it is used, and is freed when the thread ends.
    """
    outcome: Future[ResultT] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            outcome.set_exception(error)

    thread = threading.Thread(target=run, name=f"{threading.current_thread().name}-deep", daemon=True)
    with _SETTING:
        before = threading.stack_size(stack_bytes)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    return outcome.result()
