"""Writes tokenizers as GGUF files without a model, as llama.cpp's converter writes them, and reads them again."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import regex
from gguf import TokenType
from transformers import PreTrainedTokenizerBase

from draftwire_core.engine.checkpoint.gguf.gguf_parts import open_parts
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_tokenizer import read_tokenizer
from draftwire_core.engine.text.vocabulary import BYTE_ALPHABET

_SPELLING = {value: character for character, value in BYTE_ALPHABET.items()}
Ranks = Mapping[bytes, int]


@dataclass
class WrittenTokenizer:
    """What a file says of its tokenizer."""

    model: str
    tokens: list[str]
    types: list[int]
    pre: str | None = None
    scores: list[float] | None = None
    merges: list[str] | None = None
    architecture: str = "llama"
    keys: dict[str, Any] = field(default_factory=dict)
    """Further values, by keys without `tokenizer.ggml.`: whole numbers, truth values and texts."""
    general: dict[str, str] = field(default_factory=dict)
    """Further texts by their whole keys."""

    def write(self, path: Path) -> Path:
        writer = gguf.GGUFWriter(path, self.architecture)
        writer.add_tokenizer_model(self.model)
        if self.pre is not None:
            writer.add_tokenizer_pre(self.pre)
        writer.add_token_list(self.tokens)
        writer.add_token_types(self.types)
        if self.scores is not None:
            writer.add_token_scores(self.scores)
        if self.merges is not None:
            writer.add_token_merges(self.merges)
        for key, value in self.keys.items():
            key = f"tokenizer.ggml.{key}"
            if isinstance(value, bool):
                writer.add_bool(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            else:
                writer.add_array(key, list(value))
        for key, text in self.general.items():
            writer.add_string(key, text)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.close()
        return path

    def read(self, path: Path) -> PreTrainedTokenizerBase:
        """The tokenizer as it is read of a file at this path, which is written."""
        return read_tokenizer(open_parts(self.write(path))[0])


def of_json(parts: Mapping[str, Any], pre: str, **keys: Any) -> WrittenTokenizer:
    """A byte-level tokenizer with the content of a tokenizer.json."""
    names, types = _tokens(parts)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in parts["model"]["merges"]]
    return WrittenTokenizer("gpt2", names, types, pre, merges=merges, keys=keys)


def of_scored_json(parts: Mapping[str, Any], **keys: Any) -> WrittenTokenizer:
    """A tokenizer of SentencePiece with the vocabulary of a tokenizer.json, which has merges in the order of scores."""
    names, types = _tokens(parts)
    ranks: dict[str, int] = {}
    for rank, merge in enumerate(parts["model"]["merges"]):
        ranks.setdefault(merge.replace(" ", "") if isinstance(merge, str) else "".join(merge), rank)
    scores = [-float(ranks.get(name, len(ranks))) for name in names]
    for token, name in enumerate(names):
        if len(name) == 6 and name.startswith("<0x"):
            types[token] = TokenType.BYTE
        if types[token] == TokenType.USER_DEFINED:  # as they are in a text
            names[token] = name.replace("\u2581", " ")
    return WrittenTokenizer("llama", names, types, "default", scores=scores, keys=keys)


def of_ranks(ranks: Ranks, pre: str, *, before: Iterable[str] = (), after: Iterable[str] = ()) -> WrittenTokenizer:
    """A tokenizer in the format of tiktoken. before, after: special tokens with the first ids and the last ones."""
    before, after = list(before), list(after)
    by_rank = sorted(ranks, key=ranks.__getitem__)
    names = [*before, *(_spelled(token) for token in by_rank), *after]
    types = [TokenType.CONTROL] * len(before) + [TokenType.NORMAL] * len(by_rank) + [TokenType.CONTROL] * len(after)
    merges = []
    for token in by_rank:
        if len(token) > 1:
            parts = merged(ranks, token, below=ranks[token])
            if len(parts) == 2:  # otherwise it is only taken whole
                merges.append(" ".join(map(_spelled, parts)))
    return WrittenTokenizer("gpt2", names, [int(kind) for kind in types], pre, merges=merges)


def merged(ranks: Ranks, part: bytes, below: int | None = None) -> list[bytes]:
    """The tokens of a part of a text, merged by rank: slow, and plainly right. below: the rank before which it ends."""
    found = [part[at : at + 1] for at in range(len(part))]
    while True:
        pairs = [
            (rank, at)
            for at, (left, right) in enumerate(pairwise(found))
            if (rank := ranks.get(left + right)) is not None and (below is None or rank < below)
        ]
        if not pairs:
            return found
        _, at = min(pairs)
        found[at : at + 2] = [found[at] + found[at + 1]]


def ranked_ids(ranks: Ranks, pattern: str, text: str) -> list[int]:
    """The ranks of the tokens of a text, as tiktoken encodes it."""
    ids: list[int] = []
    for part in regex.findall(pattern, text):
        whole = part.encode()
        ids += [ranks[whole]] if whole in ranks else [ranks[token] for token in merged(ranks, whole)]
    return ids


def scored_ids(written: WrittenTokenizer, text: str) -> list[int]:
    """The tokens of a text without special ones, as SentencePiece encodes it: slow, and plainly right."""
    assert written.scores is not None
    ids = {name: token for token, name in enumerate(written.tokens)}
    found = list(text.replace(" ", "\u2581"))
    if written.keys.get("add_space_prefix", True):
        found.insert(0, "\u2581")
    while True:
        pairs = [
            (-written.scores[ids[left + right]], at)
            for at, (left, right) in enumerate(pairwise(found))
            if left + right in ids
        ]
        if not pairs:
            break
        _, at = min(pairs)
        found[at : at + 2] = [found[at] + found[at + 1]]
    return [
        token
        for piece in found
        for token in ([ids[piece]] if piece in ids else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()])
    ]


def charsmap(replacements: dict[str, str]) -> bytes:
    """A precompiled table of replacements of single bytes by single characters, as SentencePiece writes it."""
    units, texts = [0] * 512, b""
    units[0] = (256 ^ 0) << 10  # the root's children are at 256 and on
    for character, text in replacements.items():
        (byte,) = character.encode()
        at = 256 ^ byte
        leaf = at ^ 1  # its value, which has no label
        units[at] = byte | 1 << 8 | (at ^ leaf) << 10
        units[leaf] = 1 << 31 | len(texts)
        texts += text.encode() + b"\0"
    table = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(table)) + table + texts


def _spelled(token: bytes) -> str:
    return "".join(_SPELLING[byte] for byte in token)


def _tokens(parts: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Names and types by id; an id without a token has an unused one."""
    by_id = {token: name for name, token in parts["model"]["vocab"].items()}
    added = {entry["id"]: entry for entry in parts["added_tokens"]}
    names, types = [], []
    for token in range(max([*by_id, *added]) + 1):
        if token in added:
            names.append(added[token]["content"])
            types.append(int(TokenType.CONTROL if added[token]["special"] else TokenType.USER_DEFINED))
        else:
            names.append(by_id.get(token, f"[PAD{token}]"))
            types.append(int(TokenType.NORMAL if token in by_id else TokenType.UNUSED))
    return names, types


def read_json(path: Path) -> dict[str, Any]:
    """The content of a tokenizer.json."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found
