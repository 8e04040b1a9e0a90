"""What the lossy rules share: the target's own token where it was drafted, else a draft token that is likely enough.

A draft token costs drift only where it is not the token that the target drew; so that one comes first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from speculative_engine.acceptance.rule import Visit


class LenientRule(ABC):
    """Keeps what the coupled rule keeps and, beyond it, the likeliest draft token that the target finds good enough."""

    def token(self, visit: Visit) -> int:
        """See Rule."""
        drafted = [child.token for child in visit.verified]
        if not drafted or visit.drawn in drafted:
            return visit.drawn
        probabilities = visit.probabilities()
        best = max(drafted, key=lambda token: float(probabilities[token]))
        return best if self._good_enough(float(probabilities[best]), probabilities) else visit.drawn

    @abstractmethod
    def _good_enough(self, probability: float, probabilities: np.ndarray) -> bool:
        """Whether a token of this probability is kept, given the distribution."""
