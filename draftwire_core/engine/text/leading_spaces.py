"""The spaces that begin a text, which tokenizers of SentencePiece keep and transformers' classes of them do not.

SentencePiece puts a space before every text. The classes of transformers put one only before a text that begins with
another character, so a text with one space has the ids of one without. They build their tokenizer again, of the tokens
and merges in a tokenizer.json, and leave out how it says that spaces are treated, also when tokens become text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import normalizers
from transformers import PreTrainedTokenizerBase

_SPACE = "\u2581"
"""The character that SentencePiece writes for a space."""
_EMPTY = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}


_BYTES = "ByteFallback"
"""The step of a decoder that makes characters of tokens for bytes."""
Spaces = tuple[Any, Any, Any]
"""A normalizer and a pre-tokenizer, of which either may be None, and a decoder; None for the one that is there."""


def keep_leading_spaces(tokenizer: PreTrainedTokenizerBase, file: Path) -> None:
    """Makes a tokenizer that was just loaded treat spaces as its tokenizer.json says, or as SentencePiece does.

    Changes nothing in other kinds of tokenizers, nor if the checkpoint says that no space begins a text.

    file: the tokenizer.json, which may be missing. Raises ValueError and OSError if it cannot be read.
    """
    found = leading_spaces(tokenizer, file)
    if found is not None:
        backend = tokenizer.backend_tokenizer
        backend.normalizer, backend.pre_tokenizer, decoder = found
        backend.decoder = backend.decoder if decoder is None else decoder


def leading_spaces(tokenizer: PreTrainedTokenizerBase, file: Path) -> Spaces | None:
    """Returns what `keep_leading_spaces` gives a tokenizer; None if it changes nothing. file, Raises: as there."""
    backend = tokenizer.backend_tokenizer
    if backend.pre_tokenizer is None or getattr(tokenizer, "add_prefix_space", True) is False:
        return None
    rebuilt = json.loads(backend.pre_tokenizer.__getstate__())
    if rebuilt.get("type") != "Metaspace":
        return None
    if file.is_file():
        parts = json.loads(file.read_text(encoding="utf-8"))
        names = ("normalizer", "pre_tokenizer", "decoder")
        said = Backend.from_str(json.dumps(_EMPTY | {name: parts.get(name) for name in names}))
        steps = (parts.get("decoder") or {}).get("decoders", ())
        return said.normalizer, said.pre_tokenizer, said.decoder if {"type": _BYTES} in steps else None
    if rebuilt.get("prepend_scheme") != "never":
        return normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]), None, None
    return None
