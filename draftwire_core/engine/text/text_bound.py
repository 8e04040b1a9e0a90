"""A bound on the bytes of text per token, so that a text that is too long can be refused without tokenizing it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from draftwire_core.engine.text.vocabulary import BYTE_ALPHABET

_CHARACTER_BYTES = 4
"""Largest size of a character in UTF-8, which a token for an unknown character may stand for."""
_UNICODE_SHRINK = 4
"""Largest factor by which Unicode normalisation or lower case shrinks a text: a 4-byte mathematical letter to ASCII."""
_ROOM = 4
"""Multiple of the longest token that is assumed where nothing bounds the text of a token."""
_LEAST_ROOM = 64
"""Least number of bytes that is assumed where nothing bounds the text of a token."""
_FORMS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
_GROWING = {"Prepend", "ByteLevel"}
"""Normalisers that remove nothing."""
_KEEPING = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength"}
"""Pre-tokenizers that remove nothing."""

Part = Mapping[str, Any]


def bytes_per_token(parts: Part) -> int:
    """The most bytes of text that one token can stand for.

    The bound holds for tokenizers that remove nothing from a text. Others drop spaces or accents, map any unknown
    word to one token, or let a special token absorb adjacent spaces. For these no bound exists, and four times the
    longest token, or 64 bytes if that is more, is assumed: texts have about four bytes per token.

    parts: the content of the tokenizer.json.
    """
    longest = max(_token_sizes(parts), default=1)
    shrink = _normalizer_shrink(parts.get("normalizer"))
    if shrink is None or not _keeps_all(parts):
        return max(_ROOM * longest, _LEAST_ROOM)
    return shrink * longest


def _token_sizes(parts: Part) -> Iterator[int]:
    """Upper bounds on the bytes of each token, from its name, whose marks of spaces, word parts and bytes are at least
    as long as the text they stand for."""
    for token in parts["added_tokens"]:
        yield len(token["content"].encode())
    by_bytes = _spells_bytes(parts)
    for name in _names(parts["model"]):
        yield len(name) if by_bytes and BYTE_ALPHABET.keys() >= set(name) else len(name.encode())
    yield _CHARACTER_BYTES


def _names(model: Part) -> Iterable[str]:
    vocabulary = model["vocab"]
    return vocabulary if isinstance(vocabulary, Mapping) else (entry[0] for entry in vocabulary)


def _normalizer_shrink(normalizer: Part | None) -> int | None:
    """The most bytes of text that normalisation turns into one byte; None if there is no bound."""
    shrink = 1
    for step in _steps(normalizer, "normalizers"):
        kind = step["type"]
        if kind in _FORMS:
            shrink *= _UNICODE_SHRINK
        elif kind == "Replace":
            pattern, content = step["pattern"].get("String"), step["content"]
            if not pattern or not content:
                return None
            shrink *= max(1, -(-len(pattern.encode()) // len(content.encode())))
        elif kind not in _GROWING:
            return None
    return shrink


def _keeps_all(parts: Part) -> bool:
    """Whether every part of a normalised text ends up in a token, with a separate token per unknown character."""
    if any(token["lstrip"] or token["rstrip"] for token in parts["added_tokens"]):
        return False
    for step in _steps(parts.get("pre_tokenizer"), "pretokenizers"):
        if step["type"] not in _KEEPING and step.get("behavior", "Removed") == "Removed":
            return False
    model = parts["model"]
    if model["type"] != "BPE":
        return False
    vocabulary = model["vocab"]
    if model.get("byte_fallback") and all(f"<0x{value:02X}>" in vocabulary for value in range(256)):
        return True
    if _spells_bytes(parts) and all(each in vocabulary for each in BYTE_ALPHABET):
        return True
    return model.get("unk_token") is not None and not model.get("fuse_unk")


def _spells_bytes(parts: Part) -> bool:
    """Whether the tokenizer maps a text's bytes to characters (GPT-2's byte alphabet) before the model."""
    steps = (*_steps(parts.get("normalizer"), "normalizers"), *_steps(parts.get("pre_tokenizer"), "pretokenizers"))
    return any(step["type"] == "ByteLevel" for step in steps)


def _steps(part: Part | None, name: str) -> Iterator[Part]:
    """The steps of a normaliser or pre-tokenizer, with sequences flattened."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for each in part[name]:
        yield from _steps(each, name)
