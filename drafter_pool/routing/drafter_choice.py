"""Who drafts for a request: the drafter whose time is worth most, and now and then another one, to see how it does."""

from __future__ import annotations

import random
from collections.abc import Sequence

from drafter_pool.drafter.pooled_drafter import PoolMember

_EXPLORE = 0.05
"""Part of the choices that go to another drafter than the best."""


class DrafterChoice:
    """Chooses among drafters by accepted tokens per second of drafting time."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def among(self, links: Sequence[PoolMember]) -> PoolMember | None:
        """The drafter for one more sequence; None when there is none to choose from.

        Those that have not been measured come first, evenly, as long as their addresses may. Of the others, the one
        with the highest accepted_per_second / (sequences + 1), what is left for a sequence more, except that with a
        chance of 0.05 it is any other one.
        """
        fresh = [link for link in links if link.goes_first]
        if fresh:
            return min(fresh, key=lambda link: link.sequences)
        best = min(links, key=lambda link: (-_worth(link), link.sequences), default=None)
        others = [link for link in links if link is not best]
        if others and self._rng.random() < _EXPLORE:
            return self._rng.choice(others)
        return best


def _worth(link: PoolMember) -> float:
    return link.speed.accepted_per_second / (link.sequences + 1)
