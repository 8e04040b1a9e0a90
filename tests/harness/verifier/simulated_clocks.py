"""Clocks of a drafter pool that a test sets."""

from __future__ import annotations

from dataclasses import dataclass

from draftwire_core.pool.standing.standings import DrafterClocks


@dataclass
class SimulatedClocks:
    """Clocks that stand still unless a test moves them."""

    now: float = 1000.0
    spent: float = 0.0
    """Processor time so far."""
    reading: float = 0.0
    """Processor time that passes between two readings of the clock."""

    @property
    def clocks(self) -> DrafterClocks:
        return DrafterClocks(lambda: self.now, self._spend)

    def _spend(self) -> float:
        self.spent += self.reading
        return self.spent
