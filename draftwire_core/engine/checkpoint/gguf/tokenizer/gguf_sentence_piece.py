"""SentencePiece's tokenizers of GGUF files: merges by scores (`llama`), merges by a list (`gemma4`), and the most
likely pieces (`t5`)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.tokenizer.built_tokenizer import Built
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_charsmap import check_charsmap
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_merges import MERGES, listed_merges, ranked_merges
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_vocabulary import SPECIAL, TOKENS, GgufVocabulary

_SCORES = "tokenizer.ggml.scores"
_CHARSMAP = "tokenizer.ggml.precompiled_charsmap"
_PREFIX = "tokenizer.ggml.add_space_prefix"
_SPACE = "\u2581"
"""The character that SentencePiece writes for a space."""
_NEVER = 1e4
"""How much less likely than others a piece is that must not be found."""


def sentence_piece(
    header: GgufHeader, vocabulary: GgufVocabulary, template: Mapping[str, Any] | None, *, prefix: bool
) -> Built:
    """Merges of pairs of characters, as in Llama 2, Mistral's first models and Gemma.

    template: the post-processor of the tokenizer.json. prefix: whether a space is put before a text if the file does
    not say. Raises ModelLoadError, which names the file and the key.
    """
    metadata = header.metadata
    by_position = metadata.text("general.architecture").startswith("gemma")
    if by_position or MERGES in metadata:
        vocabulary = _respelled(header, vocabulary)
    tokens = vocabulary.tokens
    if MERGES in metadata:
        pairs = listed_merges(header)
    else:
        ranks = _positions(vocabulary) if by_position else _scores(header, tokens)
        pairs = ranked_merges(header, tokens, ranks)
    names = {name: token for token, name in enumerate(tokens)}
    unknown = vocabulary.roles.get("unknown")
    backend = Tokenizer(
        models.BPE(
            vocab=names,
            merges=pairs,
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    spaces = normalizers.Replace(" ", _SPACE)
    prefix = metadata.flag(_PREFIX, prefix)
    # Unlike Metaspace, this puts a space also before a text that begins with one.
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if prefix else spaces
    return Built(_finished(backend, vocabulary, template, prefix=prefix), names, pairs)


def unigram(header: GgufHeader, vocabulary: GgufVocabulary, template: Mapping[str, Any] | None) -> Tokenizer:
    """The most likely pieces, as in T5. template, Raises: as of `sentence_piece`."""
    metadata, tokens, types = header.metadata, vocabulary.tokens, vocabulary.types
    scores = [float(score) for score in _scores(header, tokens)]
    least = min(scores, default=0.0)
    for token, kind in enumerate(types):
        if kind == TokenType.USER_DEFINED:
            scores[token] = 0.0
        elif kind == TokenType.BYTE:  # stands for a byte alone, never for its name
            scores[token] = least - _NEVER
    bytes_there = {f"<0x{value:02X}>" for value in range(256)} <= set(tokens)
    backend = Tokenizer(
        models.Unigram(
            list(zip(tokens, scores, strict=True)), vocabulary.roles.get("unknown"), byte_fallback=bytes_there
        )
    )
    steps: list[normalizers.Normalizer] = []
    if _CHARSMAP in metadata:
        table = bytes(int(value) & 0xFF for value in header.numbers(_CHARSMAP))
        try:
            check_charsmap(table)
        except ValueError as error:
            raise metadata.refusal(_CHARSMAP, f"is damaged: {error}") from error
        steps.append(normalizers.Precompiled(table))
    prefix = metadata.flag(_PREFIX, False)
    if metadata.flag("tokenizer.ggml.remove_extra_whitespaces", False):  # which puts a space before each word
        prefix = True
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    if prefix:
        steps.append(normalizers.Prepend(" "))
    backend.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    return _finished(backend, vocabulary, template, prefix=prefix)


def _finished(
    backend: Tokenizer, vocabulary: GgufVocabulary, template: Mapping[str, Any] | None, *, prefix: bool
) -> Tokenizer:
    """Adds what all kinds have. prefix: whether a space was put before a text."""
    decoding = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*decoding, decoders.Strip(content=" ", left=1)] if prefix else decoding)
    taken: dict[bool, list[AddedToken]] = {True: [], False: []}
    for token, kind in enumerate(vocabulary.types):
        if kind in SPECIAL:
            entry = vocabulary.added(token)
            taken[entry["special"]].append(AddedToken(**{key: entry[key] for key in entry.keys() - {"id"}}))
    backend.add_special_tokens(taken[True])
    backend.add_tokens(taken[False])
    if template is not None:
        # The library makes one of JSON as a part of a whole tokenizer only.
        empty = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
        backend.post_processor = Tokenizer.from_str(json.dumps(empty | {"post_processor": template})).post_processor
    return backend


def _respelled(header: GgufHeader, vocabulary: GgufVocabulary) -> GgufVocabulary:
    """The vocabulary with tokens of several spaces spelled as others are.

    Files have them as they are in a text, since llama.cpp takes them whole out of it. Gemma's tokenizer merges them.
    """
    tokens = [_SPACE * len(name) if not name.strip(" ") else name for name in vocabulary.tokens]
    if len(frozenset(tokens)) != len(tokens):
        raise header.metadata.refusal(TOKENS, "has a token twice")
    return replace(vocabulary, tokens=tokens)


def _positions(vocabulary: GgufVocabulary) -> list[float]:
    """The ranks of Gemma's tokens, whose scores in files are not in the order of its merges.

    The tokens are in this order, but for those that SentencePiece finds before it merges, such as runs of spaces: these
    come first, the longest of all.
    """
    return [
        math.inf if kind == TokenType.USER_DEFINED else -float(token) for token, kind in enumerate(vocabulary.types)
    ]


def _scores(header: GgufHeader, tokens: Sequence[str]) -> list[int | float]:
    scores = header.numbers(_SCORES)
    if len(scores) < len(tokens):
        raise header.metadata.refusal(_SCORES, f"has {len(scores)} scores for {len(tokens)} tokens")
    if not all(map(math.isfinite, scores)):
        raise header.metadata.refusal(_SCORES, "has a score that is not finite")
    return scores[: len(tokens)]
