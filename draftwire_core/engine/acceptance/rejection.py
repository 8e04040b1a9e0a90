"""Speculative sampling on a tree: keep a draft token with probability min(1, p / q), else sample from the residual.

For one draft token this is Leviathan et al., arXiv 2211.17192, and Chen et al., arXiv 2302.01318. A node's children
are tried in the order they were drawn, each against the residual of the one before it (Miao et al., "SpecInfer",
arXiv 2305.09781; drawn without replacement: Jeon et al., arXiv 2402.14160, Chen et al., "Sequoia", arXiv 2402.12374):

    keep x with probability min(1, p(x) / q(x));  else  p <- max(p - q, 0) / sum,  q <- q without x / sum

and after the last one the token is drawn from p. The token then has the distribution p, provided that each x was drawn
from the q of its turn. Whether a further child is drawn may depend on the children before it but not on its own value.
Therefore all drawn children are tried, verified or not. A kept child that was not verified is the step's last token.

Children that were not drawn (found by a lookup, say) are tried after the drawn ones, as point masses: q(x) = 1. Their
choice may depend on anything but the numbers drawn here, which come from the request's seed by a key of their own.
"""

from __future__ import annotations

import itertools

import numpy as np

from draftwire_core.engine.acceptance.rule import AcceptanceRule, Visit
from draftwire_core.engine.sampling.philox import acceptance_uniform


class RejectionRule(AcceptanceRule):
    """Speculative sampling on a tree; the module's docstring states the algorithm."""

    draws = True

    def __init__(self, key: int):
        """key: key of the rule's random numbers, unsigned 64-bit; no drafter's numbers may depend on it."""
        self._key = key

    def token(self, visit: Visit) -> int:
        """Tries the node's children in turn, then samples from what remains of the target's distribution."""
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
                if total <= 0:  # p and q are equal up to rounding
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
