"""The tokenizer in the metadata of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gguf.constants import TokenType
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.integrations.gguf import convert_gguf_tokenizer

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufMetadata
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_splitting import SPLITTINGS

_MODEL, _PRE = "tokenizer.ggml.model", "tokenizer.ggml.pre"
_TOKENS, _TYPES = "tokenizer.ggml.tokens", "tokenizer.ggml.token_type"
_MERGES, _SCORES = "tokenizer.ggml.merges", "tokenizer.ggml.scores"
_WHOLE = "tokenizer.huggingface.json"
_TEMPLATE = "tokenizer.chat_template"
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Names in files of the special tokens of transformers."""
_SPACE = "\u2581"
"""The character that SentencePiece writes for a space."""
_LONGEST_PIECE = 256
"""Most bytes of a token whose merges have to be found: the time for it grows with the square."""


def read_tokenizer(header: GgufHeader) -> PreTrainedTokenizerBase:
    """The tokenizer, with its chat template if the file has one.

    The whole tokenizer of transformers is taken if the file has it. Otherwise one is built of the file's tokens.
    transformers does this itself for files, but ignores splittings that it does not know, the Unicode normalisation of
    Qwen's models, and that Llama 3 takes words whole. Raises ModelLoadError, which names the file and the key.
    """
    metadata = header.metadata
    key = _WHOLE if _WHOLE in metadata else _MODEL
    try:
        backend = _backend(header)
        options = {
            option: backend.id_to_token(metadata.integer(f"tokenizer.ggml.{role}_token_id"))
            for option, role in _ROLES.items()
            if f"tokenizer.ggml.{role}_token_id" in metadata
        }
        made = PreTrainedTokenizerFast(
            tokenizer_object=backend, clean_up_tokenization_spaces=False, **dict.fromkeys(_ROLES) | options
        )
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises no narrower type
        raise metadata.refusal(key, f"no tokenizer: {error}") from error
    if _TEMPLATE in metadata:
        made.chat_template = metadata.text(_TEMPLATE)
    return made


def _backend(header: GgufHeader) -> Tokenizer:
    metadata = header.metadata
    if _WHOLE in metadata:
        return Tokenizer.from_str(metadata.text(_WHOLE))
    kind, tokens = metadata.text(_MODEL), header.strings(_TOKENS)
    types = header.numbers(_TYPES) if _TYPES in metadata else [TokenType.NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise metadata.refusal(_TYPES, f"has {len(types)} types for {len(tokens)} tokens")
    if kind == "gpt2":
        return _byte_level(header, tokens, types)
    if kind == "llama":
        return _sentence_piece(header, tokens, types)
    raise metadata.refusal(_MODEL, f"{kind[:64]!r} is not supported; supported are gpt2 and llama")


def _byte_level(header: GgufHeader, tokens: Sequence[str], types: Sequence[int | float]) -> Tokenizer:
    """Byte pairs, as in the models since GPT-2."""
    metadata = header.metadata
    pre = metadata.text(_PRE)
    splitting = SPLITTINGS.get(pre)
    if splitting is None:
        why = f"splitting {pre[:64]!r} is not supported; supported are {', '.join(SPLITTINGS)}, or a file with {_WHOLE}"
        raise metadata.refusal(_PRE, why)
    used = [token for token, kind in enumerate(types) if kind != TokenType.UNUSED]  # others fill up the embedding
    added = [token for token in used if types[token] in (TokenType.CONTROL, TokenType.USER_DEFINED)]
    # Tokens added to a finished vocabulary are not part of it. Those that come first were there when it was trained.
    apart = frozenset(added) if added == used[len(used) - len(added) :] else frozenset()
    vocabulary = {tokens[token]: token for token in used if token not in apart}
    if len(vocabulary) + len(apart) != len(used):
        raise metadata.refusal(_TOKENS, "has a token twice")
    merges = [merge.split(" ") for merge in header.strings(_MERGES)]
    if not all(len(merge) == 2 for merge in merges):
        raise metadata.refusal(_MERGES, "has a merge that is not of two tokens")
    parts: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token,
                "content": tokens[token],
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": types[token] == TokenType.CONTROL,
            }
            for token in added
        ],
        "normalizer": {"type": splitting.normalizer} if splitting.normalizer else None,
        "pre_tokenizer": splitting.pre_tokenizer(),
        "post_processor": _template(metadata, tokens, add_bos=splitting.add_bos),
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
            "vocab": vocabulary,
            "merges": merges,
        },
    }
    return Tokenizer.from_str(json.dumps(parts))


def _sentence_piece(header: GgufHeader, tokens: list[str], types: Sequence[int | float]) -> Tokenizer:
    """SentencePiece's byte pairs, as in Llama 2 and Mistral's first models."""
    metadata = header.metadata
    space_first = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    scores = header.numbers(_SCORES)
    if len(scores) != len(tokens):
        raise metadata.refusal(_SCORES, f"has {len(scores)} scores for {len(tokens)} tokens")
    if len(frozenset(tokens)) != len(tokens):
        raise metadata.refusal(_TOKENS, "has a token twice")
    if max(map(len, tokens), default=0) > _LONGEST_PIECE:
        raise metadata.refusal(_TOKENS, f"has a token of more than {_LONGEST_PIECE} characters")
    given = {"tokenizer_type": "llama", "tokens": tokens, "scores": scores, "token_type": list(types)}
    # Gemma's scores are not in the order of its merges, which transformers knows.
    architecture = metadata.text("general.architecture")
    backend, _ = convert_gguf_tokenizer(architecture if architecture.startswith("gemma") else "llama", given)
    parts = json.loads(backend.to_str())
    # transformers would put the space that begins a text only where the text does not begin with one.
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prefixed = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": _SPACE}, spaces]}
    parts["normalizer"] = prefixed if space_first else spaces
    parts["pre_tokenizer"] = None
    parts["post_processor"] = _template(metadata, tokens, add_bos=True)
    return Tokenizer.from_str(json.dumps(parts))


def _template(metadata: GgufMetadata, tokens: Sequence[str], *, add_bos: bool) -> dict[str, Any] | None:
    """The part of a tokenizer that adds the tokens that begin and end a text; None if there are none.

    add_bos: whether one begins a text if the file does not say.
    """
    ends: dict[str, int] = {}
    for role, default in (("bos", add_bos), ("eos", False)):
        key = f"tokenizer.ggml.{role}_token_id"
        # A token that is only added by default may be missing.
        if metadata.flag(f"tokenizer.ggml.add_{role}_token", default) and (not default or key in metadata):
            token = metadata.integer(key)
            if token >= len(tokens):
                raise metadata.refusal(key, f"is {token}, but there are {len(tokens)} tokens")
            ends[role] = token
    if not ends:
        return None

    def one(sequence: str, kind: int) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = [{"Sequence": {"id": sequence, "type_id": kind}}]
        if "bos" in ends:
            parts.insert(0, {"SpecialToken": {"id": tokens[ends["bos"]], "type_id": kind}})
        if "eos" in ends:
            parts.append({"SpecialToken": {"id": tokens[ends["eos"]], "type_id": kind}})
        return parts

    special = {
        tokens[token]: {"id": tokens[token], "ids": [token], "tokens": [tokens[token]]} for token in ends.values()
    }
    return {
        "type": "TemplateProcessing",
        "single": one("A", 0),
        "pair": [*one("A", 0), *one("B", 1)],
        "special_tokens": special,
    }
