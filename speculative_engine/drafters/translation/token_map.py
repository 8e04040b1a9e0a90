"""How the tokens of one vocabulary are spelled in another's."""

from __future__ import annotations

from collections.abc import Sequence

from speculative_engine.text.vocabulary import Vocabulary

MOST_PIECES = 8
"""Draft tokens that one of the target's tokens is drafted with, at most."""


class TokenMap:
    """The target's tokens in draft tokens and the other way round.

    Tokens of the same bytes stand for each other. Another one is spelled by several tokens of the other vocabulary, as
    its tokenizer spells that text. A special token stands for the one of the same name or role; where there is none,
    its name is read as text and it is never drafted.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary):
        self.target = target
        self.draft = draft
        self.marks: dict[int, int] = {}
        """Draft tokens of the target's special tokens."""
        for ours, theirs in ((target.roles, draft.roles), (target.specials, draft.specials)):
            for name in ours:
                if name in theirs:
                    self.marks.setdefault(ours[name], theirs[name])
        self._names = {index: name.encode() for name, index in target.specials.items()}
        self.pieces = [each if len(each) <= MOST_PIECES else () for each in _spelled(target, draft)]
        """By token of the target, the draft tokens it is drafted with; none if it never is."""
        self.covers = _spelled(draft, target)
        """By draft token, the tokens of the target that have its text; none if it has no text."""
        for token, mark in self.marks.items():
            self.pieces[token] = (mark,)
            self.covers[mark] = self.covers[mark] or (token,)

    def text(self, token: int) -> bytes:
        """The text of one of the target's tokens, for the draft model to read; empty if `marks` has it or none does."""
        if token in self.marks or token >= len(self.target):
            return b""
        return self.target.spellings[token] or self._names.get(token, b"")

    def spelled(self, token: int) -> Sequence[int]:
        """The draft tokens of any token of the target, also of those that are never drafted."""
        return (self.marks[token],) if token in self.marks else self.draft.encode(self.text(token))


def _spelled(tokens: Vocabulary, other: Vocabulary) -> list[tuple[int, ...]]:
    """By token, the tokens of the other vocabulary that spell it: one of the same bytes, or as its tokenizer has it."""
    same = [other.by_spelling.get(spelling) for spelling in tokens.spellings]
    lacking = [spelling if match is None else b"" for spelling, match in zip(tokens.spellings, same, strict=True)]
    encoded = other.encode_each(lacking)
    return [tuple(found) if match is None else (match,) for match, found in zip(same, encoded, strict=True)]
