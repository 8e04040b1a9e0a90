"""Counts of the gain of drafting."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GainCounts:
    """Totals of the steps that decoded a request whose drafting the planner decides, since the start. A learner's own
    requests, which are decoded plainly or draft in any case, say nothing about what drafting gains."""

    tokens: int = 0
    """Tokens that these steps committed."""
    sequences: int = 0
    """Sequences decoded in these steps, counted again in each step."""
    seconds: float = 0.0
    """Time of these steps, with drafting in the engine's thread and waiting for proposals."""
    plain_seconds: float = 0.0
    """Estimated time of plain decoding of the same tokens."""

    @property
    def speed_up(self) -> float:
        """Estimated speed over plain decoding; 1 before the first step."""
        return self.plain_seconds / self.seconds if self.seconds > 0 else 1.0
