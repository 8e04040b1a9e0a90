"""The lossy rules: a draft token that the target finds likely enough is kept in the place of its own.

Both keep the target's own token where it was drafted, so that an output drifts only where it gains a token by it.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from speculative_engine.acceptance.rule import AcceptanceRule, Visit


class LossyRule(AcceptanceRule):
    """Accepts what the coupled rule accepts and, beyond it, the likeliest draft token that is good enough."""

    def token(self, visit: Visit) -> int:
        """Returns the target's own token where it was drafted or where no draft token is good enough."""
        drafted = [child.token for child in visit.verified]
        if not drafted or visit.drawn in drafted:
            return visit.drawn
        probabilities = visit.probabilities()
        best = max(drafted, key=lambda token: float(probabilities[token]))
        return best if self._good_enough(float(probabilities[best]), probabilities) else visit.drawn

    @abstractmethod
    def _good_enough(self, probability: float, probabilities: np.ndarray) -> bool:
        """Returns whether a token of this probability is kept, given the distribution [V]."""


class ThresholdRule(LossyRule):
    """Keeps a draft token to which the target gives at least a fixed probability.

    With a threshold of 1 this is the coupled rule, except where the target is certain anyway.
    """

    def __init__(self, threshold: float):
        self._threshold = threshold

    def _good_enough(self, probability: float, probabilities: np.ndarray) -> bool:
        return probability >= self._threshold


class TypicalRule(LossyRule):
    """Typical acceptance: keeps a draft token that is likely for how uncertain the target is.

        p > min(e, a * exp(-H(p)))

    Cai et al., "Medusa", arXiv 2401.10774, section 2.3.1: e is the posterior threshold, a the posterior alpha, H the
    entropy of the target's distribution in nats. Where the target is sure, e decides; where it is not, much less is
    asked of the token.
    """

    def __init__(self, posterior_threshold: float, posterior_alpha: float):
        self._threshold = posterior_threshold
        self._alpha = posterior_alpha

    def _good_enough(self, probability: float, probabilities: np.ndarray) -> bool:
        possible = probabilities[probabilities > 0]
        entropy = -float(possible @ np.log(possible))
        return probability > min(self._threshold, self._alpha * math.exp(-entropy))
