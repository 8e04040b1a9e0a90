"""Byte-level tokenizers of GGUF files, of the kind `gpt2`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gguf.constants import TokenType
from tokenizers import Tokenizer

from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_splitting import Splitting
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_vocabulary import SPECIAL, GgufVocabulary

MERGES = "tokenizer.ggml.merges"


def byte_level(
    header: GgufHeader, vocabulary: GgufVocabulary, splitting: Splitting, template: Mapping[str, Any] | None
) -> Tokenizer:
    """Merges of byte pairs, as in the models since GPT-2.

    template: the post-processor of the tokenizer.json. Raises ModelLoadError, which names the file and the key.
    """
    tokens, types = vocabulary.tokens, vocabulary.types
    used = [token for token, kind in enumerate(types) if kind != TokenType.UNUSED]  # others fill up the embedding
    added = [token for token in used if types[token] in SPECIAL]
    # Tokens added to a finished vocabulary are not part of it. Those that come first were there when it was trained.
    # The library counts on from the vocabulary, so ids that leave out some can only be given to tokens of it.
    apart = frozenset(added) if added == [*range(len(used) - len(added), len(used))] else frozenset()
    parts: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [vocabulary.added(token) for token in added],
        "normalizer": {"type": splitting.normalizer} if splitting.normalizer else None,
        "pre_tokenizer": splitting.pre_tokenizer(),
        "post_processor": template,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": splitting.affixes,
            "end_of_word_suffix": splitting.affixes,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": splitting.ignore_merges,
            "vocab": {tokens[token]: token for token in used if token not in apart},
            "merges": merges(header),
        },
    }
    return Tokenizer.from_str(json.dumps(parts))


def merges(header: GgufHeader) -> list[tuple[str, str]]:
    """The pairs that are merged, in order. Raises ModelLoadError."""
    found = [_pair(merge) for merge in header.strings(MERGES)]
    if not all(left and right for left, right in found):
        raise header.metadata.refusal(MERGES, "has a merge that is not of two tokens")
    return found


def _pair(merge: str) -> tuple[str, str]:
    """The two tokens of a merge. The first one may begin with a space where tokens are spelled in characters."""
    at = merge.find(" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else (merge, "")
