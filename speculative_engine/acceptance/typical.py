"""Typical acceptance: keep a draft token that is likely for how uncertain the target is.

    p > min(e, a * exp(-H(p)))

Cai et al., "Medusa", arXiv 2401.10774, section 2.3.1: e is the posterior threshold, a the posterior alpha, H the
entropy of the target's distribution in nats. Where the target is sure, e decides; where it is not, much less is asked.
"""

from __future__ import annotations

import math

import numpy as np

from speculative_engine.acceptance.lenient import LenientRule


class TypicalRule(LenientRule):
    """See the module."""

    def __init__(self, posterior_threshold: float, posterior_alpha: float):
        self._threshold = posterior_threshold
        self._alpha = posterior_alpha

    def _good_enough(self, probability: float, probabilities: np.ndarray) -> bool:
        possible = probabilities[probabilities > 0]
        entropy = -float(possible @ np.log(possible))
        return probability > min(self._threshold, self._alpha * math.exp(-entropy))
