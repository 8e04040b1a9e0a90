"""The merges of a vocabulary: as a GGUF file lists them, or found by the ranks of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from draftwire_core.engine.checkpoint.gguf.gguf_header import GgufHeader
from draftwire_core.engine.checkpoint.gguf.tokenizer.gguf_vocabulary import TOKENS

MERGES = "tokenizer.ggml.merges"
_LONGEST_PIECE = 256
"""Most characters of a token whose merges have to be found."""
_CHARACTER_BITS = 21
"""Bits of a character's number in Unicode."""

Merge = tuple[str, str]
"""Two tokens that make a third one."""


def listed_merges(header: GgufHeader) -> list[Merge]:
    """The pairs that are merged, in order. A pair that is listed twice counts where it comes last, as in the library.

    Raises ModelLoadError.
    """
    found = [_pair(merge) for merge in header.strings(MERGES)]
    if not all(left and right for left, right in found):
        raise header.metadata.refusal(MERGES, "has a merge that is not of two tokens")
    found.reverse()
    unique = list(dict.fromkeys(found))
    unique.reverse()
    return unique


def _pair(merge: str) -> Merge:
    """The two tokens of a merge. The first one may begin with a space where tokens are spelled in characters."""
    at = merge.find(" ", 1)
    return (merge[:at], merge[at + 1 :]) if at > 0 else (merge, "")


def ranked_merges(header: GgufHeader, tokens: Sequence[str], ranks: Sequence[int | float]) -> list[Merge]:
    """All pairs of tokens that make a token, those of higher-ranked ones first, and longer left halves first.

    These are the merges that transformers finds. Of pairs with halves of the same lengths that make tokens of the same
    rank, those of earlier tokens come first.

    tokens: the names by id, none of them empty. ranks: their ranks. Raises ModelLoadError.
    """
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    if lengths.max(initial=0) > _LONGEST_PIECE:
        raise header.metadata.refusal(TOKENS, f"has a token of more than {_LONGEST_PIECE} characters")
    characters = np.frombuffer("".join(tokens).encode("utf-32-le"), np.uint32).astype(np.int64)
    ends = np.cumsum(lengths)
    lefts = _beginnings(characters, ends - lengths, lengths)
    # The ends of tokens are the beginnings of their reverses.
    rights = _beginnings(characters[::-1], len(characters) - ends, lengths)[::-1]
    halves = (lefts[:-1] >= 0) & (rights[1:] >= 0)
    halves[ends[:-1] - 1] = False  # here one token ends and another one begins
    cuts = np.flatnonzero(halves)  # index of the last character of the left half
    made = np.searchsorted(ends, cuts, "right")
    right_lengths = ends[made] - 1 - cuts
    left_lengths = lengths[made] - right_lengths
    order = np.lexsort((-right_lengths, -left_lengths, -np.array(ranks, np.float64)[made]))
    cuts = cuts[order]
    names = np.array(tokens, object)
    return list(zip(names[lefts[cuts]].tolist(), names[rights[cuts + 1]].tolist(), strict=True))


def _beginnings(characters: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The token that a token's characters up to each place make; -1 if there is none, int32 [characters].

    Beginnings of one length are numbered, and those of one character more by this number and the character: a trie of
    all tokens, level by level.

    characters: of all tokens, one after another, in any order, int64. starts, lengths: of the tokens by id.
    """
    found = np.full(len(characters), -1, np.int32)
    ids = np.arange(len(starts), dtype=np.int32)
    numbers = np.zeros(len(starts), np.int64)
    for length in range(1, int(lengths.max(initial=0)) + 1):
        places = starts[ids] + length - 1
        known, numbers = np.unique(numbers << _CHARACTER_BITS | characters[places], return_inverse=True)
        ended = lengths[ids] == length
        whole = np.full(len(known), -1, np.int32)
        whole[numbers[ended]] = ids[ended]
        found[places] = whole[numbers]
        ids, numbers = ids[~ended], numbers[~ended]
    return found
