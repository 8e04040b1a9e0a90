"""Speculative sampling on a tree: keep a draft token with probability min(1, p / q), else go on with what p has left.

For one draft token this is Leviathan et al., arXiv 2211.17192, and Chen et al., arXiv 2302.01318. A node's children
are tried in the order they were drawn, each against what the one before it has left (Miao et al., "SpecInfer",
arXiv 2305.09781; drawn without replacement: Jeon et al., arXiv 2402.14160, Chen et al., "Sequoia", arXiv 2402.12374):

    keep x with probability min(1, p(x) / q(x));  else  p <- max(p - q, 0) / sum,  q <- q without x / sum

and after the last one the token is drawn from p. The token is then distributed as p, if each x was drawn from the q of
its turn. How many children there are may depend on those before and on nothing that depends on their own values: hence
all drawn children are tried, verified or not. One that is kept but was not verified ends the step, as its last token.

Children that nobody drew (a lookup found them, say) are tried after the drawn ones, as point masses: q(x) = 1. They may
be chosen by anything but the numbers drawn here, which come from the request's seed by a key of their own.
"""

from __future__ import annotations

import itertools

import numpy as np

from speculative_engine.acceptance.rule import AcceptanceRule, Visit
from speculative_engine.sampling.philox import acceptance_uniform


class RejectionRule(AcceptanceRule):
    """Speculative sampling on a tree, as the module's docstring has it."""

    draws = True

    def __init__(self, key: int):
        """key: of the rule's random numbers, an unsigned 64-bit integer on which no drafter's numbers may depend."""
        self._key = key

    def token(self, visit: Visit) -> int:
        """Tries the node's children one after another, and draws from what they leave of the target's distribution."""
        node = visit.node
        if not node.children:
            return visit.drawn
        p = visit.probabilities()
        numbers = (acceptance_uniform(self._key, node.position + 1, turn) for turn in itertools.count())
        drawn: tuple[int, ...] = ()
        if node.draws is not None:
            drawn = node.draws.tokens
            ids, q = node.draws.distribution.arrays()
            for token in drawn:
                place = int(np.flatnonzero(ids == token)[0])
                q /= q.sum()
                if next(numbers) * q[place] < p[token]:
                    return token
                left = p.copy()
                left[ids] = np.maximum(p[ids] - q, 0.0)
                total = left.sum()
                if total <= 0:  # p and q are equal but for rounding
                    return token
                p = left / total
                q[place] = 0.0
        for token in node.children:
            if token in drawn:
                continue
            if next(numbers) < p[token]:
                return token
            p[token] = 0.0
            total = p.sum()
            if total <= 0:
                return token
            p /= total
        running = p.cumsum()
        return int(running.searchsorted(next(numbers) * running[-1], side="right"))
