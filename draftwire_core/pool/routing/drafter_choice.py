"""The choice of a drafter: the fastest one, and occasionally another to measure it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter

_EXPLORE = 0.05
"""Share of the choices that go to a drafter other than the best."""


class DrafterChoice:
    """Chooses among drafters by accepted tokens per second of drafting time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def among(self, drafters: Sequence[PooledDrafter]) -> PooledDrafter | None:
        """Chooses the drafter for one more sequence; None if there are no candidates.

        Unmeasured drafters come first, evenly, as long as their addresses allow it. Otherwise the drafter with the
        highest accepted_per_second / (sequences + 1), the share of one more sequence, is chosen; with a probability of
        0.05 it is a random other one.
        """
        fresh = [drafter for drafter in drafters if drafter.goes_first]
        if fresh:
            return min(fresh, key=lambda drafter: drafter.sequences)
        best = min(drafters, key=lambda drafter: (-_worth(drafter), drafter.sequences), default=None)
        others = [drafter for drafter in drafters if drafter is not best]
        if others and self._rng.random() < _EXPLORE:
            return self._rng.choice(others)
        return best


def _worth(drafter: PooledDrafter) -> float:
    return drafter.speed.accepted_per_second / (drafter.sequences + 1)
