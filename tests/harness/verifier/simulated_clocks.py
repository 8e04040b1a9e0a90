"""Clocks of a pool of drafters that a test moves."""

from __future__ import annotations

from dataclasses import dataclass

from drafter_pool.standing.clocks import DrafterClocks


@dataclass
class SimulatedClocks:
    """Time stands still, and nothing takes any, unless a test says so."""

    now: float = 1000.0
    spent: float = 0.0
    """Processor time so far."""
    reading: float = 0.0
    """Processor time that passes from one look at the clock to the next."""

    @property
    def clocks(self) -> DrafterClocks:
        return DrafterClocks(lambda: self.now, self._spend)

    def _spend(self) -> float:
        self.spent += self.reading
        return self.spent
