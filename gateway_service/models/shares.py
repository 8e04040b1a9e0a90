"""Requests divided among targets by their shares."""

from __future__ import annotations

from collections.abc import Sequence


class Shares:
    """Chooses one of several for each request, so that every prefix of the choices has the shares as nearly as it can.

    The choice is smooth weighted round robin: each gains its share with every request, the richest is chosen and pays
    for all.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        """shares: at least one is above 0; one of 0 is never chosen."""
        self._shares = tuple(shares)
        self._gained = [0.0] * len(self._shares)

    def choose(self) -> int:
        """Returns the index of the next choice."""
        able = [index for index, share in enumerate(self._shares) if share]
        for index in able:
            self._gained[index] += self._shares[index]
        chosen = max(able, key=lambda index: self._gained[index])
        self._gained[chosen] -= sum(self._shares)
        return chosen
