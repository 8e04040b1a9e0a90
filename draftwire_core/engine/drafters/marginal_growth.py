"""Trees out of guesses that were made for several positions at once, each without knowing the others.

Every path through the guesses is a candidate; trees take the likeliest nodes, best first (DDTree, arXiv 2604.12989;
Medusa, arXiv 2401.10774, grows its trees alike).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import count
from typing import TypeAlias

import torch

from draftwire_core.engine.drafters.base import TreeDraft
from draftwire_core.engine.drafters.drafter import DraftSpec
from draftwire_core.engine.planning.acceptance_model import AcceptanceModel, observe_commit
from draftwire_core.engine.planning.round_worth import least_worth
from draftwire_core.engine.sampling.candidate_finder import candidate_finder
from draftwire_core.engine.sampling.sampling_batch import SamplingBatch
from draftwire_core.engine.tree.token_tree import Node

WIDTH = 4
"""Most children of a node by default."""
_LEAST_WORTH = 0.02
"""Nodes less likely than this to be on the target's path are not drafted, whatever the credit: a step that verifies
them costs more."""

Guesses: TypeAlias = "list[list[tuple[int, float]]]"
"""For each position after the root, its best tokens with their log-probabilities."""


class MarginalGrowth:
    """Grows trees from guesses for the positions after the root.

    Committed tokens show how often the guesses for each position are right. This acceptance decides how many positions
    are worth guessing, and which nodes trees get.
    """

    def __init__(
        self,
        positions: int,
        label: str,
        device: torch.device,
        alike: AcceptanceModel | None = None,
        width: int = WIDTH,
    ):
        """positions: most positions that are guessed at once. label: what one is called, for `acceptance`. alike: a
        model that learns from the guesses for all positions together. width: most children of a node."""
        self.acceptance = {f"{label} {index}": AcceptanceModel(alike) for index in range(1, positions + 1)}
        """Acceptance by source; the nodes of each position have a source of their own."""
        self._device = device
        self._width = width
        self._find = candidate_finder(device)

    def observe(self, draft: TreeDraft, tokens: Sequence[int]) -> None:
        """Learns from tokens that are about to be committed."""
        observe_commit(draft.tree, tokens, self.acceptance)

    def positions(self) -> int:
        """Returns the number of positions to guess: as many as a path of best guesses is worth."""
        worth, asked = 1.0, 0
        for model in self.acceptance.values():
            if asked and worth < _LEAST_WORTH:
                break
            asked += 1
            worth *= model.next_probability()
        return asked

    def worth(self, node: Node) -> float:
        """Returns the probability that a node is right given that its parent is."""
        return self.acceptance[node.source].probability(node)

    def expected(self) -> list[float]:
        """Returns for each position the probability that a path of best guesses is right up to it."""
        worth, values = 1.0, []
        for model in self.acceptance.values():
            worth *= model.next_probability()
            values.append(worth)
        return values

    def find(self, logits: torch.Tensor, asked: Sequence[tuple[DraftSpec, int]]) -> Guesses:
        """Returns the best tokens of each row of `logits` [rows, vocabulary] under its request's noise.

        asked: for each row, the request and the position that it guesses. Ids at or above the smallest vocabulary of
        the requests are not guessed: targets with one tokenizer differ only in padding.
        """
        limit = min(spec.vocab_size or logits.shape[1] for spec, _ in asked)
        sampling = SamplingBatch.build(
            [spec.sampling for spec, _ in asked], [position for _, position in asked], self._device
        )
        found = self._find(logits[:, : min(limit, logits.shape[1])], sampling, self._width)
        return [
            [(token, log_prob) for token, log_prob in zip(tokens, log_probs, strict=True) if token >= 0]
            for tokens, log_probs in zip(*found, strict=True)
        ]

    def extend(self, draft: TreeDraft, guesses: Guesses) -> None:
        """Grows a sequence's tree best first."""
        tree = draft.tree
        least = max(least_worth(draft.max_tree_nodes), _LEAST_WORTH)
        depth = min(len(guesses), draft.max_position - tree.root.position)
        models = list(self.acceptance.items())
        number = count()
        heap: list[tuple[float, int, int, Node]] = [(-1.0, next(number), 0, tree.root)]
        while heap:
            worth, _, ahead, parent = heapq.heappop(heap)
            if ahead >= depth:
                continue
            source, model = models[ahead]
            for rank, (token, log_prob) in enumerate(guesses[ahead]):
                value = worth * model.chance(rank, math.exp(log_prob))
                # The first guess is always made, however unlikely; otherwise a position whose guesses were once useless
                # would never be measured again.
                if -value < least and (parent is not tree.root or rank > 0):
                    continue
                known = parent.children.get(token)
                if known is None:
                    known = draft.add(parent, token, min(log_prob, 0.0), source)
                    if known is None:
                        return
                    # Siblings guessed before the last verdict may exist already; the order of these guesses counts.
                    known.rank = rank
                heapq.heappush(heap, (value, next(number), ahead + 1, known))
