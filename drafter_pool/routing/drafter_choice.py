"""The choice of a drafter: the one whose time is worth most, and now and then another, to measure it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from drafter_pool.drafter.pooled_drafter import PooledDrafter

_EXPLORE = 0.05
"""Part of the choices that go to another drafter than the best."""


class DrafterChoice:
    """Chooses among drafters by accepted tokens per second of drafting time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def among(self, drafters: Sequence[PooledDrafter]) -> PooledDrafter | None:
        """The drafter for one more sequence; None when there is none to choose from.

        Those that have not been measured come first, evenly, as long as their addresses may. Of the others, the one
        with the highest accepted_per_second / (sequences + 1), what is left for a sequence more, except that with a
        chance of 0.05 it is any other one.
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
