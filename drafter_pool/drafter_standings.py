"""The standings of drafters' addresses, of those that were attached before, too."""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakValueDictionary

from drafter_pool.drafter_clocks import DrafterClocks
from drafter_pool.drafter_standing import DrafterStanding

_MOST = 1024
"""Addresses that are remembered beside those that are attached."""


class DrafterStandings:
    """Standings by address: a drafter that is detached, or leaves, and comes back, is no other one."""

    def __init__(self, clocks: DrafterClocks) -> None:
        self._clocks = clocks
        self._held: WeakValueDictionary[str, DrafterStanding] = WeakValueDictionary()
        """All that anybody holds, those of living links among them."""
        self._latest: OrderedDict[str, DrafterStanding] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def of(self, address: str) -> DrafterStanding:
        """The standing of an address, for a link to it that is made."""
        standing = self._held.get(address)
        if standing is None:
            standing = self._held[address] = DrafterStanding(self._clocks)
        self._latest[address] = standing
        self._latest.move_to_end(address)
        if len(self._latest) > _MOST:
            self._latest.popitem(last=False)
        standing.attached()
        return standing
