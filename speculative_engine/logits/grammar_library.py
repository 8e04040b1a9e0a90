"""The library of grammars (llguidance), with the limits that bound what a form takes of it. Knows no torch: the process
that tries forms (`grammar_trial_process`) imports it."""

from __future__ import annotations

import json

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer as Backend

from speculative_engine.logits.grammar import Grammar, GrammarError

_END = "<|end of the form|>"
LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_items_in_row=500,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
)


def tokenizer_with_end(source: str) -> LLTokenizer:
    """Return the tokenizer of a tokenizer.json with one token more, which stands for the end and which no model says.

    So forms end alike whatever tokens a request takes for the end. Takes a second for a large vocabulary.

    Raises:
        GrammarError: the library cannot work with this tokenizer.
    """
    parts = json.loads(source)
    parts["padding"] = parts["truncation"] = None
    end = max(Backend.from_str(source).get_vocab(with_added_tokens=True).values()) + 1
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    parts["added_tokens"].append({"id": end, "content": _END, "special": True, **flags})
    try:
        return LLTokenizer(json.dumps(parts), eos_token=end)
    except ValueError as error:
        raise GrammarError(f"the target's tokenizer cannot be held to a form: {one_line(str(error))}") from error


def compile_form(tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """Return a form's matcher at its beginning. Needs a deep stack (`deep_stack`).

    Raises:
        GrammarError: the form cannot be had.
    """
    compiled = LLMatcher(tokenizer, grammar.notation(), log_level=0, limits=LIMITS)
    if compiled.is_error():
        raise GrammarError(one_line(compiled.get_error()))
    return compiled


def first_mask(matcher: LLMatcher) -> bytes:
    """Return which tokens may come first, a bit each.

    Raises:
        GrammarError: what is wrong with a form may show only here.
    """
    first = matcher.deep_copy()
    mask: bytes = first.compute_bitmask()
    if first.is_error():
        raise GrammarError(one_line(first.get_error()))
    return mask


def allows_any(mask: bytes, end: int) -> bool:
    """Return whether a mask, a bit for each token, has any below the one for the end."""
    place, bit = divmod(end, 8)
    return any(mask[:place]) or bool(mask[place] & ((1 << bit) - 1))


def one_line(message: str) -> str:
    """Return the library's message, on one line and of a reasonable length."""
    return " ".join(message.split())[:500]
