"""Texts that a form allows, written without a model."""

from __future__ import annotations

import random

from llguidance import LLMatcher, LLTokenizer

from draftwire_core.engine.logits.grammar import Grammar
from draftwire_core.engine.logits.grammar_library import allows_any, compile_form, tokenizer_with_end
from draftwire_core.engine.text.tokenizer import Tokenizer


class Writer:
    """Writes texts under forms, with a tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._library: LLTokenizer = tokenizer_with_end(tokenizer.token_table())
        texts = {token: tokenizer.decode([token]) for token in range(self._library.eos_token)}
        self._closing = [token for token, text in texts.items() if text and set(text) <= set('"}]')]

    def compiled(self, grammar: Grammar) -> LLMatcher:
        """Returns a form's matcher. Raises GrammarError."""
        return compile_form(self._library, grammar)

    def allows(self, grammar: Grammar, text: str) -> bool:
        """Whether a text is of the form as a whole."""
        matcher = self.compiled(grammar)
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())

    def write(self, grammar: Grammar, seed: int, most: int = 120) -> str | None:
        """Returns a random text of the form; None if it takes more than `most` tokens."""
        matcher, draw, written = self.compiled(grammar), random.Random(seed), list[int]()
        end = self._library.eos_token
        while len(written) < most:
            mask = matcher.compute_bitmask()
            assert not matcher.is_error(), matcher.get_error()
            more = allows_any(mask, end)
            if matcher.is_accepting() and (not more or draw.random() < 0.5):
                return self._tokenizer.decode(written, skip_special_tokens=False)
            assert more, "nothing is allowed, and the text is not finished"
            closing = [token for token in self._closing if mask[token // 8] >> token % 8 & 1]
            if closing and draw.random() < 0.6:
                token = draw.choice(closing)
            else:
                allowed = [at * 8 + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
                token = draw.choice([each for each in allowed if each < end])
            assert matcher.try_consume_tokens([token]) == 1
            written.append(token)
        return None
