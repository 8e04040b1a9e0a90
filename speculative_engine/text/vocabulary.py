"""A tokenizer's tokens as bytes, and bytes as its tokens: what two tokenizers have in common."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer as Backend

_INVALID = re.compile("([\udc80-\udcff]+)")
"""Bytes that are no UTF-8, as Python's surrogateescape has them."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


class VocabularyError(Exception):
    """The tokens of the tokenizer cannot be told as bytes; the message says why."""


class Vocabulary:
    """The tokens of one tokenizer.

    Tokens are known as bytes, not as text, since a token may end within a character.
    """

    def __init__(self, backend: Backend, roles: Mapping[str, int]):
        """roles: ids of special tokens by what they are for, `eos` for example. Raises VocabularyError."""
        # A copy, since the marks of another tokenizer that a text may hold are to be read as text.
        self._backend = Backend.from_str(backend.to_str())
        self._backend.encode_special_tokens = True
        self.roles = dict(roles)
        parts: dict[str, Any] = json.loads(backend.to_str())
        added = {token["id"]: token for token in parts["added_tokens"]}
        self.specials = {token["content"]: index for index, token in added.items() if token["special"]}
        """Special tokens by their name. They stand for no text."""
        spell = spelling_of(parts.get("decoder"))
        tokens = self._backend.get_vocab(with_added_tokens=True)
        self.spellings = [b""] * (max(tokens.values(), default=-1) + 1)
        """The bytes of each token; none for special ones and ids without a token."""
        for name, index in tokens.items():
            if index not in added:
                self.spellings[index] = spell(name)
            elif not added[index]["special"]:
                self.spellings[index] = name.encode()
        self.by_spelling: dict[bytes, int] = {}
        """The token of given bytes; the lowest id where several have them."""
        for index, spelling in enumerate(self.spellings):
            if spelling:
                self.by_spelling.setdefault(spelling, index)
        if any(bytes([value]) not in self.by_spelling for value in range(256)):
            raise VocabularyError("it does not have a token for every byte")

    def __len__(self) -> int:
        return len(self.spellings)

    def spell(self, tokens: Iterable[int]) -> bytes:
        """The bytes of tokens."""
        return b"".join(self.spellings[token] for token in tokens)

    def encode(self, text: bytes) -> list[int]:
        """Tokens that spell `text`, as the tokenizer has it where it is UTF-8, byte by byte where it is not."""
        parts = _parts(text)
        return [token for part in parts for token in self._checked(part, self._encoded(part))]

    def encode_each(self, texts: Sequence[bytes]) -> list[list[int]]:
        """As `encode`, of many texts at once."""
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
        # A tokenizer may change the text that it is given: accents, leading spaces.
        return tokens if self.spell(tokens) == raw else [self.by_spelling[raw[i : i + 1]] for i in range(len(raw))]


def _parts(text: bytes) -> list[str]:
    """Stretches that are UTF-8, and between them those that are not."""
    return _INVALID.split(text.decode(errors="surrogateescape"))


def spelling_of(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """The function from a token's name to its bytes, for the ways of spelling that are known. Raises
    VocabularyError."""
    steps = [] if decoder is None else decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level
    if "ByteFallback" in kinds:
        return _byte_fallback
    raise VocabularyError("its tokens are neither spelled byte by byte nor fall back to bytes")


def _byte_level(name: str) -> bytes:
    # What is not in the table is text as it stands, as the library's decoder has it.
    return bytes(BYTE_ALPHABET[each] for each in name) if set(name) <= BYTE_ALPHABET.keys() else name.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """The character that stands for each byte: GPT-2's table, which byte-level tokenizers share."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}


def _byte_fallback(name: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(name)
    return bytes([int(match[1], 16)]) if match else name.replace("\u2581", " ").encode()


BYTE_ALPHABET = _byte_level_alphabet()
"""The byte of each character that byte-level tokenizers write for it."""
