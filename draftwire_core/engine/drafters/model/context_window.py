"""The window of a text that a draft model reads when the text is longer than its context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from draftwire_core.engine.drafters.drafter import DraftSpec


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """The window of one sequence: how many of its tokens the model reads, and which.

    A window that is full is read afresh, with its newer half alone, so that the model's positions begin at 0 again. Per
    token of output about two are then read, most of them in large steps. Moving the window by one token at a time would
    change the position of every key in the cache.
    """

    size: int
    """Positions of the model, and KV slots for committed tokens."""
    most: int
    """Most committed tokens that are read: the rest of the positions is for nodes."""

    @classmethod
    def of(cls, size: int, spec: DraftSpec) -> Self:
        """Returns the window of a sequence with so many positions. A text that never outgrows them may fill all."""
        fits = max(spec.max_length, len(spec.tokens)) <= size
        return cls(size, size if fits else size - min(spec.max_tree_nodes, size // 4))

    def newest(self, tokens: Sequence[int]) -> list[int] | None:
        """Returns the tokens to read afresh, or None if the window has room for all.

        The first one stays: in many models it marks the beginning of the text, and attention rests on it.
        """
        if len(tokens) <= self.most:
            return None
        kept = max(1, self.most // 2)
        return [*tokens[: min(1, kept - 1)], *tokens[len(tokens) - max(1, kept - 1) :]]
