"""The greatest size of a text that has a given number of tokens: what is larger need not be tokenized to be refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from speculative_engine.text.vocabulary import BYTE_ALPHABET

_CHARACTER_BYTES = 4
"""Of a character in UTF-8, at most: what a token for an unknown character stands for."""
_UNICODE_SHRINK = 4
"""Times that Unicode's forms and lower case shrink a text, at most: a mathematical letter of 4 bytes becomes ASCII."""
_ROOM = 4
"""Where nothing bounds what a token may stand for, so many times the longest token is assumed for each."""
_LEAST_ROOM = 64
"""And at least so many bytes."""
_FORMS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase"}
_GROWING = {"Prepend", "ByteLevel"}
"""Normalisers that take nothing away."""
_KEEPING = {"ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength"}
"""Pre-tokenizers that take nothing away."""

Part = Mapping[str, Any]


def bytes_per_token(parts: Part) -> int:
    """The most bytes of text that one token can stand for.

    No token stands for more where the tokenizer takes nothing away from a text. Some do: they drop spaces or accents,
    take any unknown word for one token, or let a special token swallow the spaces beside it. No number is a bound
    there, and four times the longest token, or 64 bytes if that is more, is assumed: texts have about four bytes a
    token.

    parts: the tokenizer as its file has it.
    """
    longest = max(_token_sizes(parts), default=1)
    shrink = _normalizer_shrink(parts.get("normalizer"))
    if shrink is None or not _keeps_all(parts):
        return max(_ROOM * longest, _LEAST_ROOM)
    return shrink * longest


def _token_sizes(parts: Part) -> Iterator[int]:
    """The bytes of each token, or more: in its name the marks of spaces, word parts and bytes are longer than what they
    stand for."""
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
    """The most bytes of a text that become one byte; None where there is no bound."""
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
    """Whether all of a normalised text ends up in tokens, each unknown character in one of its own."""
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
    """Whether the model sees a text as the characters that stand for its bytes."""
    steps = (*_steps(parts.get("normalizer"), "normalizers"), *_steps(parts.get("pre_tokenizer"), "pretokenizers"))
    return any(step["type"] == "ByteLevel" for step in steps)


def _steps(part: Part | None, name: str) -> Iterator[Part]:
    """The steps of a sequence, also of sequences in it; a single one; none."""
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for each in part[name]:
        yield from _steps(each, name)
