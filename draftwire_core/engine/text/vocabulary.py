"""A tokenizer's tokens as bytes, and bytes as its tokens, to translate between two tokenizers."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from tokenizers import Tokenizer as Backend

from draftwire_core.engine.text.turn_markers import Turn

_INVALID = re.compile("([\udc80-\udcff]+)")
"""Bytes of invalid UTF-8, as decoded by Python's surrogateescape."""
_OF_TEXT = (0x09, 0x0A, *range(0x20, 0x7F), *range(0x80, 0xC0), *range(0xC2, 0xF1))
"""Bytes of ordinary text in UTF-8. Vocabularies made of real texts lack some of the others: control characters, the
first bytes of characters that Unicode has not assigned, and bytes that valid UTF-8 never has."""
_STAND_IN = b"?"
WORD = b"a"
"""A word that may follow a line break."""
_SPECIAL = 0x100
"""The number of the first symbol that stands for a special token."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_MOST_IDS = 1 << 20
"""Most ids of a tokenizer. The largest vocabularies today have 260,000 tokens."""


class VocabularyError(Exception):
    """Raised if the bytes of a tokenizer's tokens cannot be determined; the message says why."""


class Vocabulary:
    """The tokens of one tokenizer as bytes, not as text, since a token may end within a character."""

    def __init__(
        self, backend: Backend, roles: Mapping[str, int], *, opening: Sequence[int] = (), sha256: str | None = None
    ):
        """Takes half a second for 250,000 tokens. Raises VocabularyError.

        roles: ids of special tokens by role, such as `eos`, the most telling first. opening: the tokens that the
        tokenizer puts before every text. sha256: the tokenizer's fingerprint, if it is known.
        """
        added = backend.get_added_tokens_decoder()
        decoder = _state(backend.decoder)
        spell = spelling_of(decoder)
        self._is_byte_level = spell is _byte_level
        self._backend = _inner(backend)
        self.roles = dict(roles)
        self.opening = tuple(opening)
        self.specials = {token.content: index for index, token in added.items() if token.special}
        """Ids of special tokens by name. They stand for no text."""
        tokens = backend.get_vocab(with_added_tokens=True)
        self.spellings = [b""] * id_count(tokens)
        """The bytes of each token; empty for special tokens and for ids without a token."""
        single: list[int] = []
        for name, index in tokens.items():
            if index not in added or not added[index].special:
                self.spellings[index] = spell(name)
                if not self._is_byte_level and name.startswith("<0x") and _BYTE_TOKEN.fullmatch(name):
                    single.append(index)
        self.by_spelling: dict[bytes, int] = {}
        """Tokens by their bytes. Of several tokens with the same, the one with the lowest id that does not stand for a
        single byte: tokenizers choose `.` and not `<0x2E>`."""
        others = self.spellings.copy()
        for index in single:
            others[index] = b""
        for spellings in (others, self.spellings):
            for index, spelling in enumerate(spellings):
                if spelling:
                    self.by_spelling.setdefault(spelling, index)
        lacking = [value for value in _OF_TEXT if bytes([value]) not in self.by_spelling]
        if lacking:
            first = ", ".join(f"0x{value:02x}" for value in lacking[:3])
            raise VocabularyError(f"it does not have a token for every byte: {len(lacking)} lack one ({first})")
        self.spells_all = all(bytes([value]) in self.by_spelling for value in range(256))
        """Whether each byte has a token, so that every text has one exact spelling at least."""
        self._stand_in = self.by_spelling[_STAND_IN]
        """Stands for a byte without a token, which ordinary text does not have."""
        self.sha256 = None if sha256 is None else _fingerprint(sha256, decoder)
        """Fingerprint of the tokenizer and its decoder; None if the tokenizer's is not known."""
        self.turns: Mapping[Turn, str] = {}
        """The turn markers of the chat template, as symbols; none are known unless `Tokenizer` has found them."""
        self._marks = {*self.specials.values(), *self.roles.values(), *self.opening}

    def __len__(self) -> int:
        return len(self.spellings)

    def spell(self, tokens: Iterable[int]) -> bytes:
        """The bytes that the tokens spell."""
        return b"".join(map(self.spellings.__getitem__, tokens))

    def symbols(self, tokens: Iterable[int]) -> str:
        """The tokens as symbols: a character of Latin-1 for each byte, and one beyond for each special token."""
        return "".join(map(self._symbols, tokens))

    def _symbols(self, token: int) -> str:
        if token in self._marks:
            return special_symbol(token)
        return self.spellings[token].decode("latin-1") if token < len(self.spellings) else ""

    def encode(self, text: bytes) -> list[int]:
        """Tokens that spell `text`: as the tokenizer encodes valid UTF-8, byte by byte where it is invalid.

        A byte that no token spells, one that ordinary text does not have, becomes a "?".
        """
        parts = _parts(text)
        return [token for part in parts for token in self._checked(part, self._encoded(part))]

    def encode_lines(self, text: bytes) -> list[int]:
        """Tokens that spell `text`, which will go on: a line break at its end is read as before a word.

        Many tokenizers set the last white space before a word apart: two line breaks are one token at the end of a
        text, and two before a word.
        """
        if text.endswith(b"\n"):
            *tokens, word = self.encode(text + WORD)
            if self.spellings[word] == WORD:
                return tokens
        return self.encode(text)

    def encode_each(self, texts: Sequence[bytes]) -> list[list[int]]:
        """Encodes many short texts, such as single tokens, in a fifth of the time: words by the model of the tokenizer
        alone, as no tokenizer splits them before. Some thousand texts, since other results take a kilobyte each."""
        model = self._backend.model
        results: list[list[int]] = []
        others: list[int] = []
        for place, text in enumerate(texts):
            word = self._word(text)
            results.append([] if word is None else [token.id for token in model.tokenize(word)])
            if self.spell(results[-1]) != text:
                others.append(place)
        parts = [_parts(texts[place]) for place in others]
        asked = ["" if _INVALID.match(part) else part for each in parts for part in each]
        encoded = iter(self._backend.encode_batch_fast(asked, add_special_tokens=False))
        for place, each in zip(others, parts, strict=True):
            results[place] = [token for part in each for token in self._checked(part, next(encoded).ids)]
        return results

    def _word(self, text: bytes) -> str | None:
        """A text in the characters of the vocabulary if it is a word, perhaps with a space before it; else None."""
        try:
            word = text.decode().removeprefix(" ")
        except UnicodeDecodeError:
            return None
        # Some tokenizers split words between small and capital letters.
        if not word.isalpha() or not (word.isupper() or word[1:] == word[1:].lower()):
            return None
        return text.decode("latin-1").translate(_NAMES) if self._is_byte_level else text.decode().replace(" ", "\u2581")

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


def id_count(tokens: Mapping[str, int]) -> int:
    """The number of ids up to the highest one. Raises VocabularyError for one so high that a list of them all would
    fill the memory."""
    highest = max(tokens.values(), default=-1)
    if highest >= _MOST_IDS:
        raise VocabularyError(f"it has a token with the id {highest}; ids must be below {_MOST_IDS}")
    return highest + 1


def special_symbol(token: int) -> str:
    """The symbol of a special token."""
    return chr(_SPECIAL + token)


def is_special(symbol: str) -> bool:
    """Whether a symbol is that of a special token and not of a byte."""
    return ord(symbol) >= _SPECIAL


def special_token(symbol: str) -> int:
    """The special token of a symbol."""
    return ord(symbol) - _SPECIAL


def _parts(text: bytes) -> list[str]:
    """The text split into runs of valid UTF-8, alternating with runs of invalid bytes."""
    return _INVALID.split(text.decode(errors="surrogateescape"))


def _state(part: Any) -> Any:
    """A part of a tokenizer as in its tokenizer.json. All of it would take a second and hundreds of megabytes for a
    large vocabulary."""
    return None if part is None else json.loads(part.__getstate__())


def _inner(backend: Backend) -> Backend:
    """A tokenizer that encodes a text as it is encoded within a longer one: without a space that is put before it,
    and names of special tokens as text. It shares the vocabulary with `backend`."""
    parts = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": _without_prefix(_state(backend.normalizer)),
        "pre_tokenizer": _without_prefix(_state(backend.pre_tokenizer)),
        "model": {"type": "BPE", "vocab": {}, "merges": []},
    }
    inner = Backend.from_str(json.dumps(parts))
    inner.model = backend.model
    added = sorted(backend.get_added_tokens_decoder().items())
    for special, tokens in groupby((token for _, token in added), key=lambda token: bool(token.special)):
        (inner.add_special_tokens if special else inner.add_tokens)(list(tokens))
    if any(inner.token_to_id(token.content) != index for index, token in added):
        # Tokens that are added one by one get consecutive ids.
        whole = json.loads(backend.to_str()) | {part: parts[part] for part in ("normalizer", "pre_tokenizer")}
        inner = Backend.from_str(json.dumps(whole))
    inner.encode_special_tokens = True
    return inner


def _without_prefix(step: Any) -> Any:
    """A normaliser or pre-tokenizer without the space that it puts before each text; None if that is all it does."""
    if step is None or step["type"] == "Prepend":
        return None
    if step["type"] == "Metaspace":
        return step | {"prepend_scheme": "never"}
    if step["type"] == "ByteLevel" and "add_prefix_space" in step:
        return step | {"add_prefix_space": False}
    for name in ("normalizers", "pretokenizers"):
        if name in step:
            return step | {name: [kept for each in step[name] if (kept := _without_prefix(each)) is not None]}
    return step


def _fingerprint(sha256: str, decoder: Any) -> str:
    return hashlib.sha256(json.dumps([sha256, decoder], sort_keys=True).encode()).hexdigest()


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
    try:
        return name.translate(_LATIN).encode("latin-1")
    except UnicodeEncodeError:
        # A name with characters outside the table is plain text, as in the library's decoder.
        return name.encode()


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table of the character that stands for each byte, which byte-level tokenizers share."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}


def _byte_fallback(name: str) -> bytes:
    match = _BYTE_TOKEN.fullmatch(name) if name.startswith("<0x") else None
    return bytes([int(match[1], 16)]) if match else name.replace("\u2581", " ").encode()


BYTE_ALPHABET = _byte_level_alphabet()
"""Byte by the character that stands for it in byte-level tokenizers."""
_LATIN = {value: 0x10000 + value for value in range(256)} | {ord(name): value for name, value in BYTE_ALPHABET.items()}
"""The characters of that alphabet as those of Latin-1 that stand for the same bytes, and all others beyond Latin-1."""
_NAMES = {value: name for name, value in BYTE_ALPHABET.items()}
"""The character of that alphabet for each byte."""
