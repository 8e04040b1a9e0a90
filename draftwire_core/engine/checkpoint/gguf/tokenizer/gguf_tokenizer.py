"""The tokenizer in the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from draftwire_core.engine.checkpoint.checkpoint import ModelLoadError
from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufMetadata
from draftwire_core.engine.checkpoint.gguf.tokenizer.built_tokenizer import Built, BuiltTokenizer
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_byte_level import byte_level
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_sentence_piece import sentence_piece, unigram
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_splitting import SPLITTINGS, Splitting
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_vocabulary import MODEL, PRE, GgufVocabulary

_WHOLE = "tokenizer.huggingface.json"
_TEMPLATE = "tokenizer.chat_template"
_ROLES = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
"""Names in files of the special tokens of transformers."""
_KINDS = ("gpt2", "llama", "gemma4", "t5")
_OTHER_KINDS = {
    "bert": "WordPiece",
    "rwkv": "RWKV's own kind",
    "plamo2": "PLaMo 2's own kind",
    "hybriddna": "of DNA",
    "whitespace": "of words",
    "none": "none at all",
    "no_vocab": "none at all",
}
"""Kinds that llama.cpp has and that are not supported, with words for them."""


def read_tokenizer(header: GgufHeader) -> PreTrainedTokenizerBase:
    """The tokenizer, with its chat templates if the file has any.

    The whole tokenizer of transformers is taken if the file has it. Otherwise one is built of the file's tokens.
    transformers does this itself for files, but ignores splittings that it does not know, the Unicode normalisation of
    Qwen's models, and that Llama 3 takes words whole. Raises ModelLoadError, which names the file and the key.
    """
    metadata = header.metadata
    key = _WHOLE if _WHOLE in metadata else MODEL
    try:
        said = metadata.text(key)
        vocabulary = None if _WHOLE in metadata else GgufVocabulary.read(header)
        built = Built(Tokenizer.from_str(said)) if vocabulary is None else _built(header, vocabulary, said)
        roles = _named(metadata) if vocabulary is None else vocabulary.roles
        options = {option: built.backend.id_to_token(roles[role]) for option, role in _ROLES.items() if role in roles}
        made = BuiltTokenizer(built, clean_up_tokenization_spaces=False, **dict.fromkeys(_ROLES) | options)
    except ModelLoadError:
        raise
    except Exception as error:  # the library raises no narrower type
        raise metadata.refusal(key, f"no tokenizer: {error}") from error
    made.chat_template = _chat_templates(metadata)
    return made


def _named(metadata: GgufMetadata) -> dict[str, int]:
    """The ids of special tokens, by role, that keys name."""
    keys = {role: f"tokenizer.ggml.{role}_token_id" for role in _ROLES.values()}
    return {role: metadata.integer(key) for role, key in keys.items() if key in metadata}


def _chat_templates(metadata: GgufMetadata) -> str | dict[str, str] | None:
    """The chat template; all by their names if the file has several, such as one for conversations with tools."""
    named = {
        key.removeprefix(f"{_TEMPLATE}."): metadata.text(key) for key in metadata if key.startswith(f"{_TEMPLATE}.")
    }
    if _TEMPLATE in metadata:
        named["default"] = metadata.text(_TEMPLATE)
    return named.get("default") if named.keys() <= {"default"} else named


def _built(header: GgufHeader, vocabulary: GgufVocabulary, kind: str) -> Built:
    metadata = header.metadata
    if kind == "llama":
        return sentence_piece(header, vocabulary, _template(metadata, vocabulary, add_bos=True), prefix=True)
    if kind == "t5":
        return Built(unigram(header, vocabulary, _template(metadata, vocabulary, add_eos=True)))
    if kind not in _KINDS:
        what = f"{kind[:64]!r} is not supported"
        if kind in _OTHER_KINDS:
            what = f"{kind!r} is not supported, a tokenizer that is {_OTHER_KINDS[kind]}"
        raise metadata.refusal(MODEL, f"{what}; supported are {', '.join(_KINDS)}, or a file with {_WHOLE}")
    splitting = _splitting(metadata, kind)
    template = _template(metadata, vocabulary, add_bos=splitting.add_bos, always=splitting.raw and splitting.add_bos)
    if splitting.raw:
        return sentence_piece(header, vocabulary, template, prefix=False)
    return byte_level(header, vocabulary, splitting, template)


def _splitting(metadata: GgufMetadata, kind: str) -> Splitting:
    if kind == "gemma4":
        return SPLITTINGS[kind]
    if PRE not in metadata:
        why = "is missing, so the splitting is unknown: convert the model again with a llama.cpp of April 2024 or later"
        raise metadata.refusal(PRE, why)
    pre = metadata.text(PRE)
    if pre not in SPLITTINGS:
        why = f"splitting {pre[:64]!r} is not supported; supported are {', '.join(SPLITTINGS)}, or a file with {_WHOLE}"
        raise metadata.refusal(PRE, why)
    return SPLITTINGS[pre]


def _template(
    metadata: GgufMetadata,
    vocabulary: GgufVocabulary,
    *,
    add_bos: bool = False,
    add_eos: bool = False,
    always: bool = False,
) -> dict[str, Any] | None:
    """The part of a tokenizer that adds the tokens that begin and end a text; None if there are none.

    add_bos, add_eos: whether they are added if the file does not say. always: whether `bos` is, whatever it says: files
    of Gemma 4 say it is not, and the model needs it.
    """
    tokens, ends = vocabulary.tokens, {}
    for role, default in (("bos", add_bos), ("eos", add_eos)):
        asked = metadata.flag(f"tokenizer.ggml.add_{role}_token", default)
        if role in vocabulary.roles and (asked or (always and role == "bos")):
            ends[role] = vocabulary.roles[role]
        elif asked and not default:  # a token that is only added by default may be missing
            key = f"tokenizer.ggml.{role}_token_id"
            raise metadata.refusal(key, f"is {metadata.integer(key)}, but there are {len(tokens)} tokens")
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
