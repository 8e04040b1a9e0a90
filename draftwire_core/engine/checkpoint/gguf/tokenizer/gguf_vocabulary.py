"""The tokens of a GGUF file: their names, types and roles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gguf.constants import TokenType

from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.gguf_metadata import GgufMetadata
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_ends import ends_of

MODEL = "tokenizer.ggml.model"
PRE = "tokenizer.ggml.pre"
TOKENS = "tokenizer.ggml.tokens"
_TYPES = "tokenizer.ggml.token_type"
SPECIAL = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
"""Types of tokens that are taken whole out of a text."""
_ROLES = ("bos", "eos", "eot", "eom", "unknown", "padding")
_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1, "unknown": 2, "padding": 0},
}
"""Tokens with a role in files that do not name them, by the kind of the tokenizer, as in llama.cpp."""
_PHI = ("phi-3", "phi3")
_NEVER_STRIPPED = frozenset(["<unk>", "<s>", "<|endoftext|>"])
_STRIPPED = frozenset(["</s>"])


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokens of a GGUF file."""

    tokens: list[str]
    """The names by id, as the file spells them; all differ."""
    types: Sequence[int | float]
    """Values of `TokenType` by id, and others in damaged files."""
    roles: Mapping[str, int]
    """Ids by role: `bos`, `eos`, `eot`, `eom`, `unknown`, `padding`."""
    ends: list[int]
    """Ids of the tokens that end a text, the one that the file calls `eos` first."""
    strips_left: frozenset[str]
    """Names of tokens that take the spaces before them."""
    strips_right: frozenset[str]
    """Names of tokens that take the spaces after them."""

    @classmethod
    def read(cls, header: GgufHeader) -> GgufVocabulary:
        """Raises ModelLoadError, which names the file and the key."""
        metadata = header.metadata
        # An empty name stands for nothing that can be in a text.
        tokens = [name or f"[EMPTY_{token}]" for token, name in enumerate(header.strings(TOKENS))]
        ids = {name: token for token, name in enumerate(tokens)}
        if len(ids) != len(tokens):
            raise metadata.refusal(TOKENS, "has a token twice")
        types = header.numbers(_TYPES) if _TYPES in metadata else [TokenType.NORMAL] * len(tokens)
        if len(types) < len(tokens):
            raise metadata.refusal(_TYPES, f"has {len(types)} types for {len(tokens)} tokens")
        roles = _roles(metadata, len(tokens))
        ends = ends_of(roles, ids, types)
        for token in ends:
            if types[token] == TokenType.USER_DEFINED:
                types[token] = TokenType.CONTROL
        special = frozenset(name for name, kind in zip(tokens, types, strict=False) if kind in SPECIAL)
        left, right = _stripping(metadata, special)
        return cls(tokens, types[: len(tokens)], roles, ends, left, right)

    def added(self, token: int) -> dict[str, Any]:
        """An entry of the added tokens of a tokenizer.json: a token that is taken whole out of any text."""
        name = self.tokens[token]
        return {
            "id": token,
            "content": name,
            "single_word": False,
            "lstrip": name in self.strips_left,
            "rstrip": name in self.strips_right,
            "normalized": False,
            "special": self.types[token] != TokenType.USER_DEFINED,
        }


def _roles(metadata: GgufMetadata, tokens: int) -> dict[str, int]:
    kind = metadata.text(MODEL) if MODEL in metadata else ""
    found = {role: token for role, token in _DEFAULTS.get(kind, {}).items() if token < tokens}
    for role in _ROLES:
        key = f"tokenizer.ggml.{role}_token_id"
        # Some writers put -1 for no token; as in llama.cpp, an id beyond the vocabulary is as good as missing.
        if key in metadata and (token := metadata.integer(key)) < tokens:
            found[role] = token
    return found


def _stripping(metadata: GgufMetadata, special: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The tokens that take spaces before them, and those that take spaces after them.

    Files do not say; llama.cpp knows the models.

    special: the names of the tokens that are taken whole out of a text.
    """
    pre = metadata.text(PRE) if PRE in metadata else ""
    name = metadata.text("general.name").lower() if "general.name" in metadata else ""
    if pre.startswith(("jina-v2-de", "jina-v2-es", "jina-v2-code")):
        return special & {"<mask>"}, frozenset()
    if any(each in name for each in _PHI):
        return frozenset(), (special | _STRIPPED) - _NEVER_STRIPPED
    if "modern-bert" in name:
        return special & {"[MASK]"}, frozenset()
    return frozenset(), frozenset()
