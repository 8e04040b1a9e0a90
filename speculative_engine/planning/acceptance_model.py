"""How likely a drafted node is on the target's path, learned from what was really committed."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from speculative_engine.tree.token_tree import Node, TokenTree

_CONFIDENCE_EDGES = (0.1, 0.3, 0.5, 0.7, 0.9)
_CLASSES = len(_CONFIDENCE_EDGES) + 1
_RANKS = 3
_MEMORY = 200.0
"""Trials after which older ones have lost most of their weight."""
_PRIOR_TRIALS = 8.0
_ALIKE_TRIALS = 2.0
"""Trials that the experience with others of its kind counts for: a few tokens of its own outweigh any number of
others, since nothing but the request that brought it says whether it is right."""
_PRIOR_FIRST = 0.6
"""Chance of a first child before anything is known of a drafter."""


class AcceptanceClass(NamedTuple):
    """Nodes that are taken to be alike."""

    rank: int
    """Among their siblings; the last one stands for all further ones, too."""
    above: float
    """The drafter's probability is above this, and not above that of the rank's next class."""
    acceptance: float
    """Chance that such a node is right given that its parent is, in (0, 1)."""
    observations: float
    """Nodes observed, older ones counting less, and the prior's."""


class AcceptanceModel:
    """Calibrates one drafter: acceptance by a node's rank among its siblings and the drafter's own probability.

    The probability says how sure the drafter is, not how often the target agrees; the rates per class of (rank,
    probability) say that, as exponential averages that start from a cautious prior. Every committed token is
    compared with all drafted siblings at its place, also with nodes that were never verified, so a drafter that is
    not used is still measured, at no cost.
    """

    def __init__(self, alike: AcceptanceModel | None = None) -> None:
        """alike: the model of all drafters of this one's kind, for a drafter of a single request. It is a weak prior
        here, and learns from what is observed here."""
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
        # The same of all first children together: a class that a drafter never uses keeps its prior for ever.
        self._first_hits, self._first_trials = _PRIOR_TRIALS * _PRIOR_FIRST, _PRIOR_TRIALS

    def probability(self, node: Node) -> float:
        """Chance that the node is right given that its parent is, in (0, 1)."""
        return self._rate(*self._class_of(node.rank, math.exp(node.log_prob)))

    def chance(self, rank: int, probability: float) -> float:
        """As `probability`, of a node of which only its rank and the drafter's probability are known."""
        return self._rate(*self._class_of(rank, probability))

    def classes(self) -> list[AcceptanceClass]:
        """All classes, by rank and probability."""
        return [
            AcceptanceClass(rank, above, self._rate(rank, confidence), self._trials[rank][confidence])
            for rank in range(_RANKS)
            for confidence, above in enumerate((0.0, *_CONFIDENCE_EDGES))
        ]

    def observe(self, node: Node, hit: bool) -> None:
        """Count a node whose parent was committed: was it, too?"""
        if self._alike is not None:
            self._alike.observe(node, hit)
        rank, confidence = self._class_of(node.rank, math.exp(node.log_prob))
        keep = 1 - 1 / _MEMORY
        self._hits[rank][confidence] = self._hits[rank][confidence] * keep + hit
        self._trials[rank][confidence] = self._trials[rank][confidence] * keep + 1
        if rank == 0:
            self._first_hits = self._first_hits * keep + hit
            self._first_trials = self._first_trials * keep + 1

    def next_probability(self) -> float:
        """Chance that the next best node, not yet drafted, will be right given that its parent is."""
        return self._first_hits / self._first_trials

    def _rate(self, rank: int, confidence: int) -> float:
        return (self._hits[rank][confidence] + 1e-3) / (self._trials[rank][confidence] + 2e-3)

    @staticmethod
    def _class_of(rank: int, probability: float) -> tuple[int, int]:
        return min(rank, _RANKS - 1), bisect_left(_CONFIDENCE_EDGES, probability)


def observe_commit(tree: TokenTree, tokens: Sequence[int], models: dict[str, AcceptanceModel]) -> None:
    """Let the models of the drafters in `tree` learn from `tokens`, which are about to be committed."""
    node = tree.root
    for token in tokens:
        for child in node.children.values():
            if child.source in models:
                models[child.source].observe(child, child.token == token)
        following = node.children.get(token)
        if following is None:
            return
        node = following
