"""Drafting from texts that are known already: no model, microseconds a proposal."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Sequence
from itertools import count, groupby
from operator import itemgetter

from speculative_engine.drafters.base import TreeDraft, TreeDrafter
from speculative_engine.drafters.drafter import DraftSpec
from speculative_engine.drafters.lookup.lookup import Lookup, Place
from speculative_engine.planning.acceptance_model import AcceptanceModel, observe_commit
from speculative_engine.planning.round_worth import least_worth
from speculative_engine.tree.token_tree import Node

_MOST_READ = 512
"""Tokens that one call of `grow` reads of all sequences together: as much as a step of the target takes of prompts, and
so little that no step is held up."""
_WIDTH = 3
"""Most children of a node."""
_SOURCE = "lookup"


class _Draft(TreeDraft):
    """One sequence, and the tokens that its lookup has yet to read."""

    def __init__(self, spec: DraftSpec, lookup: Lookup):
        super().__init__(spec)
        self.lookup = lookup
        self.unread = list(spec.tokens)

    def commit(self, tokens: Sequence[int]) -> list[int]:
        """See TreeDraft.commit."""
        self.unread.extend(tokens)
        return super().commit(tokens)

    def read(self, most: int) -> int:
        """Let the lookup read; how many tokens it took."""
        tokens, self.unread = self.unread[:most], self.unread[most:]
        self.lookup.extend(tokens)
        return len(tokens)


class LookupDrafter(TreeDrafter[_Draft]):
    """A drafter that looks up how a sequence may go on.

    The tokens found at several places are blended: the longest agreement is believed first, and what it leaves open
    goes to shorter ones. A token after n agreeing tokens is believed n / (n + 1); how often that is right is learned
    from what is committed, and decides how far the tree grows. So a lookup that helps nothing costs next to nothing.
    """

    def __init__(self, make: Callable[[DraftSpec], Lookup], acceptance: AcceptanceModel | None = None):
        """make: the lookup of a sequence. acceptance: what is known of its guesses."""
        super().__init__()
        self.acceptance = acceptance if acceptance is not None else AcceptanceModel()
        self._make = make

    def begin(self, spec: DraftSpec) -> _Draft:
        """See BaseDrafter.begin."""
        return _Draft(spec, self._make(spec))

    def observe(self, draft: _Draft, tokens: Sequence[int]) -> None:
        """See BaseDrafter.observe."""
        observe_commit(draft.tree, tokens, {_SOURCE: self.acceptance})

    def extend(self, drafts: Sequence[_Draft]) -> None:
        """See TreeDrafter.extend."""
        for draft in drafts:
            self._draft(draft)

    def _due(self) -> list[Hashable]:
        """Those whose texts are read. Those that have least to read come first, so that a long prompt holds up nobody
        else."""
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
        """Grow a sequence's tree best first."""
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
                # The first guess is made however unlikely: else a lookup once useless would never be measured again.
                if -value < least and (parent is not tree.root or rank > 0):
                    continue
                # Shares add up to one but for rounding.
                known = draft.add(parent, token, min(math.log(probability), 0.0), _SOURCE)
                if known is None:
                    return
                heapq.heappush(heap, (value, next(number), known, further))


def _children(places: Sequence[Place], vocab_size: int | None) -> list[tuple[int, float, list[Place]]]:
    """The likeliest next tokens at some places, best first, each with its probability and the places after it."""
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
