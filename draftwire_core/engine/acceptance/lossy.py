"""The lossy rules: a draft token that is likely enough under the target replaces the target's own token.

Both rules keep the target's own token where it was drafted, so an output deviates only where that gains a token.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from draftwire_core.engine.acceptance.rule import AcceptanceRule, Visit


class LossyRule(AcceptanceRule):
    """Accepts what the coupled rule accepts and, where that accepts nothing, the likeliest good-enough draft token."""

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
        """Whether a token of this probability is kept, given the distribution [V]."""


class ThresholdRule(LossyRule):
    """Keeps a draft token whose probability under the target reaches a fixed threshold.

    With a threshold of 1 this is the coupled rule, except if the target is certain anyway.
    """

    def __init__(self, threshold: float):
        self._threshold = threshold

    def _good_enough(self, probability: float, probabilities: np.ndarray) -> bool:
        return probability >= self._threshold


class TypicalRule(LossyRule):
    """Typical acceptance: keeps a draft token that is likely relative to the target's uncertainty.

        p > min(e, a * exp(-H(p)))

    Cai et al., "Medusa", arXiv 2401.10774, section 2.3.1: e is the posterior threshold, a the posterior alpha, H the
    entropy of the target's distribution in nats. Where the target is certain, e is the bound; where it is uncertain, a
    much lower probability suffices.
    """

    def __init__(self, posterior_threshold: float, posterior_alpha: float):
        self._threshold = posterior_threshold
        self._alpha = posterior_alpha

    def _good_enough(self, probability: float, probabilities: np.ndarray) -> bool:
        possible = probabilities[probabilities > 0]
        entropy = -float(possible @ np.log(possible))
        return probability > min(self._threshold, self._alpha * math.exp(-entropy))
