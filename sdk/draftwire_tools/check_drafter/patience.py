"""How long the check waits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Patience:
    """Times to wait."""

    answer: float
    """For what has to come."""
    draft: float
    """For nodes, which a drafter need not send."""
    quiet: float
    """Without a message until the drafter counts as done."""
