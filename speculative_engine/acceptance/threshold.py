"""Keep a draft token to which the target gives at least a fixed probability."""

from __future__ import annotations

import numpy as np

from speculative_engine.acceptance.lenient import LenientRule


class ThresholdRule(LenientRule):
    """With a threshold of 1 it is the coupled rule, but where the target is certain anyway."""

    def __init__(self, threshold: float):
        self._threshold = threshold

    def _good_enough(self, probability: float, probabilities: np.ndarray) -> bool:
        return probability >= self._threshold
