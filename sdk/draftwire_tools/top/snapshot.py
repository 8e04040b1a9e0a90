"""Snapshot of everything that the view shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from draftwire_tools.top.drafter_figures import DrafterFigures
from draftwire_tools.top.event import Event
from draftwire_tools.top.verifier_figures import VerifierFigures


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The verifiers, their drafters and recent events."""

    at: datetime
    """Time of the snapshot (UTC)."""
    verifiers: Sequence[VerifierFigures]
    drafters: Sequence[DrafterFigures]
    events: Sequence[Event]
    """Recent events, oldest first."""

    def json(self) -> dict[str, Any]:
        """Returns it as a JSON value."""
        return {
            "at": self.at.isoformat(),
            "verifiers": [asdict(each) for each in self.verifiers],
            "drafters": [asdict(each) for each in self.drafters],
            "events": [asdict(each) | {"at": each.at.isoformat()} for each in self.events],
        }


def _descending(value: float | None) -> float:
    return float("inf") if value is None else -value


ORDERS: dict[str, Callable[[DrafterFigures], Any]] = {
    "age": lambda drafter: 0,  # verifiers list them oldest first
    "name": lambda drafter: drafter.name,
    "acceptance": lambda drafter: _descending(drafter.acceptance_rate),
    "tokens": lambda drafter: _descending(drafter.draft_tokens_per_second),
    "round trip": lambda drafter: float("inf") if drafter.response_seconds is None else drafter.response_seconds,
}
"""Orders of drafters: name of the order, and sort key of a drafter."""
