"""Lookahead decoding: the target drafts for itself, in extra rows of its verification passes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import cast

from draftwire_core.engine.drafters.lookahead.jacobi_window import JacobiWindow
from draftwire_core.engine.drafters.lookahead.ngram_pool import NgramPool
from draftwire_core.engine.drafters.lookup.lookup_drafter import LookupDrafter, Place
from draftwire_core.engine.drafters.probing import NO_PROBES, Probes
from draftwire_core.engine.errors import FieldError
from draftwire_core.engine.tree.token_tree import Node

_MOST_COLUMNS = 64
_LONGEST_NGRAM = 16
_MOST_GUESSES = 64


@dataclass(frozen=True, slots=True)
class LookaheadOptions:
    """The sizes of the window and of the n-gram pool."""

    window: int = 15
    """Most columns, which begin at consecutive positions after the sequence."""
    ngram: int = 5
    """Tokens per n-gram; a column has one fewer."""
    guesses: int = 5
    """Most n-grams kept per first token."""

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("window", self.window, 1, _MOST_COLUMNS),
            ("ngram", self.ngram, 2, _LONGEST_NGRAM),
            ("guesses", self.guesses, 1, _MOST_GUESSES),
        ):
            if not least <= value <= most:
                raise FieldError(name, f"must be from {least} to {most}, got {value}")


class Lookahead:
    """One sequence's window and the n-grams found with it: a `lookup.Lookup` by the last token."""

    def __init__(self, options: LookaheadOptions, max_length: int):
        self._options = options
        self._levels = options.ngram - 1
        self._max_length = max_length
        self._text: list[int] = []
        self._window = JacobiWindow(self._levels)
        self._pool = NgramPool(options.guesses)

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds the sequence's next tokens."""
        self._text.extend(tokens)

    def places(self) -> list[Place]:
        """Returns the place after the last token in the pool's n-grams; empty if none begins with it."""
        return self._pool.places(self._text[-1])

    def probes(self, root: Node, most_rows: int) -> Probes:
        """Returns the probes for the next pass, at most `most_rows`. No column extends beyond the sequence's end."""
        left = self._max_length - 1 - root.position - self._levels
        count = min(self._options.window, most_rows // self._levels, left)
        return self._window.probes(root, self._text, count) if count > 0 and self._text else NO_PROBES

    def learn(self, tokens: Sequence[int]) -> None:
        """Adds the n-grams that the target's tokens complete to the pool."""
        for ngram in self._window.learn(self._text, tokens):
            self._pool.add(ngram)


class LookaheadDrafter(LookupDrafter):
    """The drafter `local:lookahead`, a ProbingDrafter (see `probing`): looks up the n-grams found by its probes."""

    def __init__(self, options: LookaheadOptions):
        super().__init__(lambda spec: Lookahead(options, spec.max_length))
        self._options = options

    @property
    def least_rows(self) -> int:
        """The rows of one column, the fewest that the drafter can learn from."""
        return self._options.ngram - 1

    def probes(self, key: Hashable, root: Node, most_rows: int) -> Probes:
        """Returns the probes for a sequence's next pass, at most `most_rows`."""
        return self._lookahead(key).probes(root, most_rows)

    def learn(self, key: Hashable, tokens: Sequence[int]) -> None:
        """Receives the target's token after each column of the last probes, -1 for none."""
        self._lookahead(key).learn(tokens)

    def _lookahead(self, key: Hashable) -> Lookahead:
        return cast(Lookahead, self._drafts[key].lookup)
