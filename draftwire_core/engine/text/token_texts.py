"""Single tokens as text and as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from tokenizers import Tokenizer as Backend

from draftwire_core.engine.text.vocabulary import VocabularyError, spelling_of


class TokenText(NamedTuple):
    """The text of one token."""

    text: str
    """The token's text on its own, or a special token's name; a partial character is U+FFFD."""
    text_bytes: bytes
    """The token's bytes."""


class TokenTexts:
    """The texts of a tokenizer's tokens, each looked up once. Any thread may call it."""

    def __init__(self, backend: Backend, parts: Mapping[str, Any]):
        """parts: the content of the tokenizer.json."""
        self._backend = backend
        self._added = {token["id"]: token["content"] for token in parts["added_tokens"]}
        self._spell: Callable[[str], bytes] | None = None
        """Function from a token's name to its bytes; None if its bytes are unknown, and the decoded text is used."""
        with suppress(VocabularyError):
            self._spell = spelling_of(parts.get("decoder"))
        self._known: dict[int, TokenText] = {}

    def of(self, token: int) -> TokenText:
        """The text of a token; empty if the tokenizer has no such id."""
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
