"""Estimates how likely a drafted node is on the target's path, learned from committed tokens."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from draftwire_core.engine.tree.token_tree import Node, TokenTree

_CONFIDENCE_EDGES = (0.1, 0.3, 0.5, 0.7, 0.9)
_LOG_EDGES = tuple(math.log(edge) for edge in _CONFIDENCE_EDGES)
_CLASSES = len(_CONFIDENCE_EDGES) + 1
_RANKS = 3
_MEMORY = 200.0
"""Number of trials after which older ones have lost most of their weight."""
_PRIOR_TRIALS = 8.0
_ALIKE_TRIALS = 2.0
"""Number of trials that the record of the drafter's kind counts for. A few tokens of its own outweigh any number of
others', since only its own request shows whether it is right."""
_PRIOR_FIRST = 0.6
"""Acceptance probability of a first child for a drafter without any record."""


class AcceptanceClass(NamedTuple):
    """A class of nodes with a common acceptance estimate."""

    rank: int
    """Rank among siblings; the last class includes all further ranks."""
    above: float
    """Exclusive lower bound of the drafter's probability; the upper bound is that of the rank's next class."""
    acceptance: float
    """Probability that such a node is right given that its parent is, in (0, 1)."""
    observations: float
    """Number of nodes observed, older ones weighted less, prior included."""


class AcceptanceModel:
    """Calibrates one drafter: acceptance by a node's rank among its siblings and the drafter's own probability.

    The drafter's probability says how sure the drafter is, not how often the target agrees. The agreement is measured
    per class of (rank, probability), as exponential averages that start from a cautious prior. Every committed token is
    compared with all drafted siblings at its position, including nodes that were never verified. An unused drafter is
    therefore still measured, at no cost.
    """

    def __init__(self, alike: AcceptanceModel | None = None) -> None:
        """alike: the model of all drafters of this one's kind, for a drafter of a single request. It serves as a weak
        prior and learns from every observation made here."""
        self._alike = alike
        if alike is not None:
            self._hits = [[_ALIKE_TRIALS * alike._rate(rank, c) for c in range(_CLASSES)] for rank in range(_RANKS)]
            self._trials = [[_ALIKE_TRIALS] * _CLASSES for _ in range(_RANKS)]
            self._first_hits, self._first_trials = _ALIKE_TRIALS * alike.next_probability(), _ALIKE_TRIALS
            return
        centres = [0.05, 0.2, 0.4, 0.6, 0.8, 0.95]
        self._hits = [
            [_PRIOR_TRIALS * (0.3 + 0.55 * p if rank == 0 else 0.5 * (1 - p) * p) for p in centres]
            for rank in range(_RANKS)
        ]
        self._trials = [[_PRIOR_TRIALS] * len(centres) for _ in range(_RANKS)]
        # First children are also averaged over all classes: a class that a drafter never uses keeps its prior forever.
        self._first_hits, self._first_trials = _PRIOR_TRIALS * _PRIOR_FIRST, _PRIOR_TRIALS

    def probability(self, node: Node) -> float:
        """Returns the probability that the node is right given that its parent is, in (0, 1)."""
        # Asked for a few hundred nodes in each step, hence without further calls.
        rank = node.rank if node.rank < _RANKS else _RANKS - 1
        confidence = bisect_left(_LOG_EDGES, node.log_prob)
        return (self._hits[rank][confidence] + 1e-3) / (self._trials[rank][confidence] + 2e-3)

    def chance(self, rank: int, probability: float) -> float:
        """Returns the same as `probability` for a node given by its rank and the drafter's probability."""
        return self._rate(min(rank, _RANKS - 1), bisect_left(_CONFIDENCE_EDGES, probability))

    def classes(self) -> list[AcceptanceClass]:
        """Returns all classes, by rank and probability."""
        return [
            AcceptanceClass(rank, above, self._rate(rank, confidence), self._trials[rank][confidence])
            for rank in range(_RANKS)
            for confidence, above in enumerate((0.0, *_CONFIDENCE_EDGES))
        ]

    def observe(self, node: Node, hit: bool) -> None:
        """Counts a node whose parent was committed. hit: whether the node was committed as well."""
        if self._alike is not None:
            self._alike.observe(node, hit)
        rank, confidence = min(node.rank, _RANKS - 1), bisect_left(_LOG_EDGES, node.log_prob)
        keep = 1 - 1 / _MEMORY
        self._hits[rank][confidence] = self._hits[rank][confidence] * keep + hit
        self._trials[rank][confidence] = self._trials[rank][confidence] * keep + 1
        if rank == 0:
            self._first_hits = self._first_hits * keep + hit
            self._first_trials = self._first_trials * keep + 1

    def next_probability(self) -> float:
        """Returns the probability that the next best node, not yet drafted, will be right given that its parent is."""
        return self._first_hits / self._first_trials

    def _rate(self, rank: int, confidence: int) -> float:
        return (self._hits[rank][confidence] + 1e-3) / (self._trials[rank][confidence] + 2e-3)

    def expected(self, rank: int) -> float:
        """Returns the probability that a node of this rank, not yet drafted, will be right given that its parent is."""
        if rank == 0:
            return self.next_probability()
        of_rank = min(rank, _RANKS - 1)
        return sum(self._hits[of_rank]) / sum(self._trials[of_rank])


def observe_commit(tree: TokenTree, tokens: Sequence[int], models: dict[str, AcceptanceModel]) -> None:
    """Updates the models of the drafters in `tree` with `tokens`, which are about to be committed."""
    node = tree.root
    for token in tokens:
        for child in node.children.values():
            if child.source in models:
                models[child.source].observe(child, child.token == token)
        following = node.children.get(token)
        if following is None:
            return
        node = following
