"""A tokenizer's tokens as bytes, and bytes as its tokens, to translate between two tokenizers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

_INVALID = re.compile("([\udc80-\udcff]+)")
"""Bytes of invalid UTF-8, as decoded by Python's surrogateescape."""
_OF_TEXT = (*range(0xC0), *range(0xC2, 0xF5))
"""Bytes that valid UTF-8 may have."""
_STAND_IN = b"?"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class VocabularyError(Exception):
    """Raised if the bytes of a tokenizer's tokens cannot be determined; the message says why."""


class Vocabulary:
    """The tokens of one tokenizer as bytes, not as text, since a token may end within a character."""

    def __init__(self, backend: Backend, roles: Mapping[str, int]):
        """roles: ids of special tokens by role, such as `eos`. Raises VocabularyError."""
        # A copy, on which names of special tokens within a text are encoded as text.
        self._backend = Backend.from_str(backend.to_str())
        self._backend.encode_special_tokens = True
        self.roles = dict(roles)
        parts: dict[str, Any] = json.loads(backend.to_str())
        added = {token["id"]: token for token in parts["added_tokens"]}
        self.specials = {token["content"]: index for index, token in added.items() if token["special"]}
        """Ids of special tokens by name. They stand for no text."""
        spell = spelling_of(parts.get("decoder"))
        tokens = self._backend.get_vocab(with_added_tokens=True)
        self.spellings = [b""] * (max(tokens.values(), default=-1) + 1)
        """The bytes of each token; empty for special tokens and for ids without a token."""
        for name, index in tokens.items():
            if index not in added or not added[index]["special"]:
                self.spellings[index] = spell(name)
        self.by_spelling: dict[bytes, int] = {}
        """Tokens by their bytes; the lowest id where several tokens have the same."""
        for index, spelling in enumerate(self.spellings):
            if spelling:
                self.by_spelling.setdefault(spelling, index)
        lacking = [value for value in _OF_TEXT if bytes([value]) not in self.by_spelling]
        if lacking:
            first = ", ".join(f"0x{value:02x}" for value in lacking[:3])
            raise VocabularyError(f"it does not have a token for every byte: {len(lacking)} lack one ({first})")
        self._stand_in = self.by_spelling[_STAND_IN]
        """Stands for a byte without a token, which no valid UTF-8 has."""

    def __len__(self) -> int:
        return len(self.spellings)

    def spell(self, tokens: Iterable[int]) -> bytes:
        """The bytes that the tokens spell."""
        return b"".join(self.spellings[token] for token in tokens)

    def encode(self, text: bytes) -> list[int]:
        """Tokens that spell `text`: as the tokenizer encodes valid UTF-8, byte by byte where it is invalid.

        A byte that valid UTF-8 never has and no token spells, as in vocabularies made of real texts, becomes a "?".
        """
        parts = _parts(text)
        return [token for part in parts for token in self._checked(part, self._encoded(part))]

    def encode_each(self, texts: Sequence[bytes]) -> list[list[int]]:
        """Encodes many texts at once; see `encode`."""
        parts = [_parts(text) for text in texts]
        asked = ["" if _INVALID.match(part) else part for each in parts for part in each]
        encoded = iter(self._backend.encode_batch_fast(asked, add_special_tokens=False))
        return [[token for part in each for token in self._checked(part, next(encoded).ids)] for each in parts]

    def _encoded(self, part: str) -> list[int]:
        if _INVALID.match(part):
            return []
        ids: list[int] = self._backend.encode(part, add_special_tokens=False).ids
        return ids

    def _checked(self, part: str, tokens: list[int]) -> list[int]:
        raw = part.encode(errors="surrogateescape")
        # A tokenizer may change a text, for example its accents or leading spaces.
        if self.spell(tokens) == raw:
            return tokens
        return [self.by_spelling.get(bytes([value]), self._stand_in) for value in raw]


def _parts(text: bytes) -> list[str]:
    """The text split into runs of valid UTF-8, alternating with runs of invalid bytes."""
    return _INVALID.split(text.decode(errors="surrogateescape"))


def spelling_of(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """The function from a token's name to its bytes. Raises VocabularyError for an unknown kind of decoder."""
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds:
        return _byte_fallback
    raise VocabularyError("its tokens are not byte-level and do not fall back to bytes")


def _byte_level(name: str) -> bytes:
    # A name with characters outside the table is plain text, as in the library's decoder.
    return bytes(BYTE_ALPHABET[each] for each in name) if set(name) <= BYTE_ALPHABET.keys() else name.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table of the character that stands for each byte, which byte-level tokenizers share."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}


def _byte_fallback(name: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(match[1], 16)]) if match else name.replace("\u2581", " ").encode()


BYTE_ALPHABET = _byte_level_alphabet()
"""Byte by the character that stands for it in byte-level tokenizers."""
