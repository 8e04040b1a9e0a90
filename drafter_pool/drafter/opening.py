"""One sequence that is open with a drafter, as the verifier keeps it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

from draftwire.v1.verdict_pb2 import Verdict

_MOST_TOLD = 64
"""Committed lengths that are kept with the time at which the drafter was told of them."""


@dataclass(slots=True)
class DrafterOpening:
    """Verdicts of a sequence that were sent to the drafter, and those that are held back."""

    epoch: int
    request_id: str
    """Of the request, for the log."""
    max_tree_nodes: int
    """Its credit."""
    ready: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """True once the drafter has caught up, False when it will not."""
    held: Verdict | None = None
    """Verdicts that were not sent yet."""
    _told: dict[int, float] = field(default_factory=dict)
    """When it was told of a committed length, shortest first, from the one that it has shown to know last."""

    def tell(self, committed_length: int, now: float) -> None:
        """The drafter is told of a committed length."""
        if len(self._told) >= _MOST_TOLD:
            del self._told[next(iter(self._told))]
        self._told[committed_length] = now

    def told_at(self, committed_length: int) -> float:
        """When the drafter was told of a length that it knows; as long ago as possible if that is not kept."""
        while self._told and next(iter(self._told)) < committed_length:
            del self._told[next(iter(self._told))]
        return self._told.get(committed_length, -math.inf)
