"""What single tokens stand for, as text and as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Backend

from speculative_engine.text.vocabulary import VocabularyError, spelling_of


class TokenText(NamedTuple):
    """One token."""

    text: str
    """Its text on its own; a part of a character shows as U+FFFD. A special token's is its name."""
    text_bytes: bytes
    """Its bytes."""


class TokenTexts:
    """The tokens of one tokenizer, each looked up once. Any thread may call it."""

    def __init__(self, backend: Backend, parts: Mapping[str, Any]):
        """parts: the tokenizer as its file has it."""
        self._backend = backend
        self._added = {token["id"]: token["content"] for token in parts["added_tokens"]}
        self._spell: Callable[[str], bytes] | None = None
        """None where tokens are not known as bytes: what they decode to has to do."""
        with suppress(VocabularyError):
            self._spell = spelling_of(parts.get("decoder"))
        self._known: dict[int, TokenText] = {}

    def of(self, token: int) -> TokenText:
        """What a token stands for; nothing where the tokenizer has none of this id."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._look_up(token)
        return known

    def _look_up(self, token: int) -> TokenText:
        name = self._added.get(token)
        if name is not None:
            return TokenText(name, name.encode())
        name = self._backend.id_to_token(token)
        if name is None:
            return TokenText("", b"")
        if self._spell is None:
            text = self._backend.decode([token])
            return TokenText(text, text.encode())
        spelled = self._spell(name)
        return TokenText(spelled.decode(errors="replace"), spelled)
