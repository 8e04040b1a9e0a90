"""Byte-level tokenizers of GGUF files, of the kind `gpt2`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gguf.constants import TokenType
from tokenizers import Tokenizer

from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.tokenizer.built_tokenizer import Built
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_merges import listed_merges
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_splitting import Splitting
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_vocabulary import SPECIAL, GgufVocabulary


def byte_level(
    header: GgufHeader, vocabulary: GgufVocabulary, splitting: Splitting, template: Mapping[str, Any] | None
) -> Built:
    """Merges of byte pairs, as in the models since GPT-2.

    template: the post-processor of the tokenizer.json. Raises ModelLoadError, which names the file and the key.
    """
    tokens, types = vocabulary.tokens, vocabulary.types
    used = [token for token, kind in enumerate(types) if kind != TokenType.UNUSED]  # others fill up the embedding
    added = [token for token in used if types[token] in SPECIAL]
    # Tokens added to a finished vocabulary are not part of it. Those that come first were there when it was trained.
    # The library counts on from the vocabulary, so ids that leave out some can only be given to tokens of it.
    apart = frozenset(added) if added == [*range(len(used) - len(added), len(used))] else frozenset()
    names = {tokens[token]: token for token in used if token not in apart}
    pairs = listed_merges(header)
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
            "vocab": names,
            "merges": pairs,
        },
    }
    return Built(Tokenizer.from_str(json.dumps(parts)), names, pairs)
