"""The spelling of one vocabulary's tokens in the tokens of another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from draftwire_core.engine.drafters.translation.token_lists import TokenLists
from draftwire_core.engine.drafters.translation.turn_translation import TurnTranslation
from draftwire_core.engine.text.vocabulary import WORD, Vocabulary, special_symbol

MOST_PIECES = 8
"""Most draft tokens that draft a single target token."""
_BATCH = 4096
"""Texts that are encoded at once."""


class Spelled(NamedTuple):
    """The tokens of two vocabularies, each spelled in those of the other; see `TokenMap`."""

    target: TokenLists
    """By target token, the draft tokens of the same bytes; empty if there are none."""
    draft: TokenLists
    """By draft token, the target tokens of the same bytes; empty if there are none."""

    @classmethod
    def of(cls, target: Vocabulary, draft: Vocabulary) -> Spelled:
        """Spells all tokens: seconds for large vocabularies."""
        return cls(_spelled(target, draft), _spelled(draft, target))


class TokenMap:
    """The target's tokens in draft tokens, and vice versa.

    Tokens of the same bytes correspond to each other. Any other token is spelled by several tokens of the other
    vocabulary, as that vocabulary's tokenizer encodes its text. A special token corresponds to the one with the same
    name or else the same role; if there is none, its name is read as text and it is never drafted. Instead of the
    tokens that the target's tokenizer puts before every text, the draft model reads those of its own.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary, spelled: Spelled | None = None):
        """spelled: all tokens as spelled before; by default they are spelled now."""
        self.target = target
        self.draft = draft
        self.marks: dict[int, int] = dict(zip(target.opening, draft.opening, strict=False))
        """The corresponding draft tokens of the target's special tokens."""
        for ours, theirs in ((target.specials, draft.specials), (target.roles, draft.roles)):
            for name in ours:
                if name in theirs:
                    self.marks.setdefault(ours[name], theirs[name])
        self.names = {index: name.encode() for name, index in target.specials.items() if index not in target.opening}
        """The names of the target's special tokens, which are read as text unless they are in `marks`."""
        spelled = spelled if spelled is not None else Spelled.of(target, draft)
        pieces = spelled.target.kept(spelled.target.counts <= MOST_PIECES)
        self.pieces = pieces.replaced({token: (mark,) for token, mark in self.marks.items()})
        """By target token, the draft tokens that draft it; empty if it is never drafted."""
        covers: dict[int, Sequence[int]] = {}
        for token, mark in self.marks.items():
            if not spelled.draft.counts[mark]:
                covers.setdefault(mark, (token,))
        self.covers = spelled.draft.replaced(covers)
        """By draft token, the target tokens that it stands for; empty if there are none."""
        plain = {ord(special_symbol(token)): name.decode("latin-1") for token, name in self.names.items()}
        plain |= {ord(special_symbol(token)): special_symbol(mark) for token, mark in self.marks.items()}
        self.turns = TurnTranslation.of(target.turns, draft.turns, plain)
        """Translation of the turn markers; None if there are none in common."""

    def text(self, token: int) -> bytes:
        """Returns the text of a target token for the draft model; empty for tokens in `marks` and unknown ids."""
        if token in self.marks or token >= len(self.target):
            return b""
        return self.target.spellings[token] or self.names.get(token, b"")

    def symbols(self, tokens: Iterable[int]) -> str:
        """Returns target tokens as the draft model's symbols, without regard to turn markers."""
        return "".join(
            special_symbol(self.marks[token]) if token in self.marks else self.text(token).decode("latin-1")
            for token in tokens
        )

    def spelled(self, token: int) -> Sequence[int]:
        """Returns the draft tokens of any target token, even one that is never drafted."""
        return (self.marks[token],) if token in self.marks else self.draft.encode(self.text(token))


def _spelled(tokens: Vocabulary, other: Vocabulary) -> TokenLists:
    """Returns each token's spelling in the other vocabulary: the token of the same bytes, or else its text encoded. One
    with bytes that the other vocabulary cannot spell has none. One that ends a line is spelled as before a word."""
    size = len(tokens)
    same = np.fromiter((other.by_spelling.get(spelling, -1) for spelling in tokens.spellings), np.int32, size)
    lacking = [index for index in np.flatnonzero(same < 0).tolist() if tokens.spellings[index]]
    counts = (same >= 0).astype(np.int32)
    encoded = [np.empty(0, np.int32)]
    for start in range(0, len(lacking), _BATCH):
        batch = lacking[start : start + _BATCH]
        spellings = [tokens.spellings[index] for index in batch]
        found = TokenLists.of(other.encode_each(spellings))
        if not other.spells_all:
            exact = (other.spell(each) == spelling for each, spelling in zip(found, spellings, strict=True))
            found = found.kept(np.fromiter(exact, np.bool_, len(found)))
        counts[batch] = found.counts
        encoded.append(found.tokens)
    result = np.repeat(same, counts)
    result[np.repeat(same < 0, counts)] = np.concatenate(encoded)
    return TokenLists(result, counts).replaced(_line_ends(tokens, other))


def _line_ends(tokens: Vocabulary, other: Vocabulary) -> dict[int, Sequence[int]]:
    """Returns the tokens that end a line and that the other vocabulary's tokenizer reads in another way before a word
    than alone, with their spelling there; see `Vocabulary.encode_lines`."""
    ends = [index for index, spelling in enumerate(tokens.spellings) if len(spelling) > 1 and spelling.endswith(b"\n")]
    found: dict[int, Sequence[int]] = {}
    for start in range(0, len(ends), _BATCH):
        batch = ends[start : start + _BATCH]
        encoded = other.encode_each([tokens.spellings[index] + WORD for index in batch])
        for index, (*spelled, word) in zip(batch, encoded, strict=True):
            spelling = tokens.spellings[index]
            if len(spelled) > 1 and other.spellings[word] == WORD and other.spell(spelled) == spelling:
                found[index] = spelled
    return found
