"""The spelling of one vocabulary's tokens in the tokens of another."""

from __future__ import annotations

from collections.abc import Sequence

from draftwire_core.engine.text.vocabulary import Vocabulary

MOST_PIECES = 8
"""Most draft tokens that draft a single target token."""


class TokenMap:
    """The target's tokens in draft tokens, and vice versa.

    Tokens of the same bytes correspond to each other. Any other token is spelled by several tokens of the other
    vocabulary, as that vocabulary's tokenizer encodes its text. A special token corresponds to the one with the same
    name or role; if there is none, its name is read as text and it is never drafted.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary):
        self.target = target
        self.draft = draft
        self.marks: dict[int, int] = {}
        """The corresponding draft tokens of the target's special tokens."""
        for ours, theirs in ((target.roles, draft.roles), (target.specials, draft.specials)):
            for name in ours:
                if name in theirs:
                    self.marks.setdefault(ours[name], theirs[name])
        self._names = {index: name.encode() for name, index in target.specials.items()}
        self.pieces = [each if len(each) <= MOST_PIECES else () for each in _spelled(target, draft)]
        """By target token, the draft tokens that draft it; empty if it is never drafted."""
        self.covers = _spelled(draft, target)
        """By draft token, the target tokens that it stands for; empty if there are none."""
        for token, mark in self.marks.items():
            self.pieces[token] = (mark,)
            self.covers[mark] = self.covers[mark] or (token,)

    def text(self, token: int) -> bytes:
        """Returns the text of a target token for the draft model; empty for tokens in `marks` and unknown ids."""
        if token in self.marks or token >= len(self.target):
            return b""
        return self.target.spellings[token] or self._names.get(token, b"")

    def spelled(self, token: int) -> Sequence[int]:
        """Returns the draft tokens of any target token, even one that is never drafted."""
        return (self.marks[token],) if token in self.marks else self.draft.encode(self.text(token))


def _spelled(tokens: Vocabulary, other: Vocabulary) -> list[tuple[int, ...]]:
    """Returns each token's spelling in the other vocabulary: the token of the same bytes, or else its text encoded. One
    with bytes that the other vocabulary cannot spell has none."""
    same = [other.by_spelling.get(spelling) for spelling in tokens.spellings]
    lacking = [spelling if match is None else b"" for spelling, match in zip(tokens.spellings, same, strict=True)]
    encoded = other.encode_each(lacking)
    exact = [
        tuple(found) if other.spell(found) == spelling else () for spelling, found in zip(lacking, encoded, strict=True)
    ]
    return [found if match is None else (match,) for match, found in zip(same, exact, strict=True)]
