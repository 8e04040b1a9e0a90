"""The grammar library (llguidance), with limits on a form's resources.

Does not import torch, since the trial process (`grammar_trial_process`) imports this module.
"""

from __future__ import annotations

import json

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from tokenizers import Tokenizer as Backend

from speculative_engine.logits.grammar import Grammar, GrammarError

_NO_TOKEN = "NoExtensionBias"
"""The library's name for a form under which no first token is possible."""
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
    """Returns the tokenizer of a tokenizer.json, with an additional token for the end that no model produces.

    Forms then end alike, whichever tokens end a request. Takes a second for a large vocabulary.

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
        raise GrammarError(f"the target's tokenizer supports no forms of output: {one_line(str(error))}") from error


def compile_form(tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """Compiles a form; returns its matcher at the beginning. Needs a deep stack (`deep_stack`).

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
