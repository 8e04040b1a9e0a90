"""The drafter over known texts. It needs no model and takes microseconds per proposal."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count, groupby
from operator import itemgetter
from typing import NamedTuple, Protocol

from draftwire_core.engine.drafters.base import TreeDraft, TreeDrafter
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel, observe_commit
from draftwire_core.engine.planning.round_worth import least_worth
from draftwire_core.engine.tree.token_tree import Node

_MOST_READ = 512
"""Most tokens that one call of `grow` reads over all sequences: as many as a step of the target takes of prompts, and
few enough not to delay a step."""
_WIDTH = 3
"""Most children of a node."""
_SOURCE = "lookup"


class Text(Protocol):
    """A text or a collection of texts seen before."""

    def following(self, where: int) -> Iterable[tuple[int, float, int]]:
        """Returns the tokens seen next at a place: each token, its relative frequency, and the place after it."""


class Place(NamedTuple):
    """A place in a text from which a sequence may continue."""

    length: int
    """Number of tokens before it that match the sequence's last ones."""
    text: Text
    where: int


class Lookup(Protocol):
    """Finds the places for one sequence. Its work per token is bounded, whatever the length of the sequence."""

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds the sequence's next tokens, prompt and output alike."""

    def places(self) -> Sequence[Place]:
        """Returns places from which the sequence may continue, longest match first, few enough to examine all of
        them."""


class _Draft(TreeDraft):
    """One sequence, with the tokens that its lookup has yet to read."""

    def __init__(self, spec: DraftSpec, lookup: Lookup):
        super().__init__(spec)
        self.lookup = lookup
        self.unread = list(spec.tokens)

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """Applies a verdict, and queues its tokens for the lookup."""
        self.unread.extend(tokens)
        return super().commit(tokens)

    def read(self, most: int) -> int:
        """Passes at most `most` unread tokens to the lookup; returns how many it took."""
        tokens, self.unread = self.unread[:most], self.unread[most:]
        self.lookup.extend(tokens)
        return len(tokens)


class LookupDrafter(TreeDrafter[_Draft]):
    """Drafts the continuations that a lookup finds.

    Tokens found at several places are blended: the longest match gets its share first, and shorter ones divide the
    rest. A token after n matching tokens has confidence n / (n + 1). Committed tokens show how often that confidence is
    justified, which decides how far the tree grows. A useless lookup therefore costs next to nothing.
    """

    def __init__(self, make: Callable[[DraftSpec], Lookup], acceptance: AcceptanceModel | None = None):
        """make: creates the lookup of a sequence. acceptance: prior experience with its guesses."""
        super().__init__()
        self.acceptance = acceptance if acceptance is not None else AcceptanceModel()
        self._make = make

    def begin(self, spec: DraftSpec) -> _Draft:
        """Returns a draft with a new lookup."""
        return _Draft(spec, self._make(spec))

    def observe(self, draft: _Draft, tokens: Sequence[int]) -> None:
        """Updates the acceptance estimates."""
        observe_commit(draft.tree, tokens, {_SOURCE: self.acceptance})

    def extend(self, drafts: Sequence[_Draft]) -> None:
        """Grows the tree of each sequence."""
        for draft in drafts:
            self._draft(draft)

    def _due(self) -> list[Hashable]:
        """Returns the sequences whose texts are read completely.

        Those with the fewest unread tokens are read first, so that a long prompt delays no other sequence.
        """
        due: list[Hashable] = []
        room = _MOST_READ
        for key in sorted(self._to_do, key=lambda each: len(self._drafts[each].unread)):
            draft = self._drafts[key]
            room -= draft.read(room)
            if draft.unread:
                break
            due.append(key)
        return due

    def _draft(self, draft: _Draft) -> None:
        """Grows a sequence's tree best first."""
        tree, spec = draft.tree, draft.spec
        least = least_worth(spec.max_tree_nodes)
        number = count()
        heap: list[tuple[float, int, Node, Sequence[Place]]] = [(-1.0, next(number), tree.root, draft.lookup.places())]
        while heap:
            worth, _, parent, places = heapq.heappop(heap)
            if parent.position >= draft.max_position:
                continue
            for token, probability, further in _children(places, spec.vocab_size):
                known = parent.children.get(token)
                rank = len(parent.children) if known is None else known.rank
                value = worth * self.acceptance.chance(rank, probability)
                # The first guess is always made, however unlikely; otherwise a once useless lookup would never be
                # measured again.
                if -value < least and (parent is not tree.root or rank > 0):
                    continue
                # Shares add up to one up to rounding.
                known = draft.add(parent, token, min(math.log(probability), 0.0), _SOURCE)
                if known is None:
                    return
                heapq.heappush(heap, (value, next(number), known, further))


def _children(places: Sequence[Place], vocab_size: int | None) -> list[tuple[int, float, list[Place]]]:
    """Returns the likeliest next tokens at some places, best first, each with its probability and the places after
    it."""
    shares: dict[int, float] = {}
    further: dict[int, list[Place]] = {}
    left = 1.0
    for length, alike in groupby(places, key=itemgetter(0)):
        seen: list[tuple[int, float]] = []
        total = 0.0
        for _, text, where in alike:
            for token, share, after in text.following(where):
                total += share
                if vocab_size is None or token < vocab_size:
                    seen.append((token, share))
                    further.setdefault(token, []).append(Place(length + 1, text, after))
        if total:
            believed = left * length / (length + 1)
            for token, share in seen:
                shares[token] = shares.get(token, 0.0) + believed * share / total
            left -= believed
    if len(shares) == 1:
        return [(token, share, further[token]) for token, share in shares.items()]
    best = sorted(shares, key=lambda token: -shares[token])[:_WIDTH]
    return [(token, shares[token], further[token]) for token in best]
