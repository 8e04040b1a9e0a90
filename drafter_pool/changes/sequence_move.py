"""Moves one sequence from one drafter to another, make before break."""

from __future__ import annotations

import asyncio
import enum

from drafter_pool.drafter.pooled_drafter import PooledDrafter
from drafter_pool.routing.drafted_request import DraftedRequest
from drafter_pool.routing.drafting import Drafting
from service_runtime.process.logs import get_logger

log = get_logger(__name__)

_MOVE_SECONDS = 30.0
"""Longest wait for a drafter to catch up with a sequence that moves to it."""


class Move(enum.Enum):
    """How a move ended."""

    DONE = "the new drafter drafts, the old one does not any more"
    OVER = "there is nothing left to move: the request has ended, or the old drafter has lost it"
    REFUSED = "the new drafter cannot draft for it, now or at all; the old one still does"
    LATE = "the new drafter has not caught up in time, or was lost; the old one still does"


async def move(drafting: Drafting, drafted: DraftedRequest, old: PooledDrafter, new: PooledDrafter) -> Move:
    """Open a sequence with the new drafter, and close it with the old one once the new one has caught up.

    Both get every verdict meanwhile and both draft, so the sequence moves between two of them and lacks nothing.
    """
    sequence_id = drafted.sequence_id
    if drafted.over or not old.has(sequence_id):
        return Move.OVER
    if not new.ready:
        return Move.LATE
    if not new.has(sequence_id):
        if not new.has_room or not drafted.takes(new):
            return Move.REFUSED
        drafting.open(drafted, new)
    opened = new.opened(sequence_id)
    await asyncio.wait({opened}, timeout=_MOVE_SECONDS)
    if drafted.over or not old.has(sequence_id):
        return Move.OVER
    if not opened.done():
        log.warning(
            "drafter did not catch up in time",
            drafter=new.name,
            sequence_id=sequence_id,
            request_id=drafted.request.order.request_id,
        )
        drafting.close(drafted, new)
        return Move.LATE
    if not opened.result():
        return Move.REFUSED if new.ready else Move.LATE
    drafting.close(drafted, old)
    drafted.request.span.event("drafter swapped", {"draftwire.drafter.old": old.name, "draftwire.drafter": new.name})
    drafting.assign(drafted)  # one that had both before lacks one now
    return Move.DONE
