"""Make-before-break swaps: moves sequences from one drafter to another, or off a drafter that is leaving."""

from __future__ import annotations

import asyncio
import enum
from collections import Counter

from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.routing.drafted_request import DraftedRequest
from draftwire_core.pool.routing.drafting import Drafting
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)

_MOVE_SECONDS = 30.0
"""Maximum wait for a drafter to catch up with a sequence that moves to it."""


class SequenceMove(enum.Enum):
    """The outcome of moving one sequence."""

    DONE = "the new drafter drafts, the old one no longer does"
    OVER = "there is nothing left to move: the request has ended, or the old drafter has lost it"
    REFUSED = "the new drafter cannot draft for it, now or at all; the old one still does"
    LATE = "the new drafter has not caught up in time, or was lost; the old one still does"


async def move(drafting: Drafting, drafted: DraftedRequest, old: PooledDrafter, new: PooledDrafter) -> SequenceMove:
    """Opens a sequence with the new drafter, and closes it with the old one once the new one has caught up.

    Until then both drafters receive every verdict and draft, so the sequence is never without a drafter.
    """
    sequence_id = drafted.sequence_id
    if drafted.over or not old.has(sequence_id):
        return SequenceMove.OVER
    if not new.ready:
        return SequenceMove.LATE
    if not new.has(sequence_id):
        if not new.has_room or not drafted.takes(new):
            return SequenceMove.REFUSED
        drafting.open(drafted, new)
    opened = new.opened(sequence_id)
    await asyncio.wait({opened}, timeout=_MOVE_SECONDS)
    if drafted.over or not old.has(sequence_id):
        return SequenceMove.OVER
    if not opened.done():
        log.warning(
            "catch-up timed out",
            drafter=new.name,
            sequence_id=sequence_id,
            request_id=drafted.request.order.request_id,
        )
        drafting.close(drafted, new)
        return SequenceMove.LATE
    if not opened.result():
        return SequenceMove.REFUSED if new.ready else SequenceMove.LATE
    drafting.close(drafted, old)
    drafted.request.span.event("drafter swapped", {"draftwire.drafter.old": old.name, "draftwire.drafter": new.name})
    drafting.assign(drafted)  # a request that already had both drafters is now one short
    return SequenceMove.DONE


async def move_all(drafting: Drafting, old: PooledDrafter, new: PooledDrafter) -> Counter[SequenceMove]:
    """Moves the sequences of one drafter to another. Returns the number of moves by outcome."""
    return Counter(await asyncio.gather(*(move(drafting, drafted, old, new) for drafted in drafting.drafted_by(old))))


async def swap(drafting: Drafting, old: PooledDrafter, new: PooledDrafter) -> int:
    """Drains a drafter and moves all its sequences to another. Returns the number of sequences moved.

    Raises ServiceError (UNAVAILABLE) if the new drafter is not ready, or does not catch up with every sequence in time.
    The old drafter then resumes, and sequences that have moved stay with the new one.
    """
    if not new.ready:
        raise new.unreachable()
    old.drain()
    drafting.redirect(old.name, new.name)
    stays = True
    try:
        moves = await move_all(drafting, old, new)
        if moves[SequenceMove.LATE] or not new.ready:
            raise _incomplete(new, moves)
        stays = False
    finally:
        if stays:
            drafting.counts.failed_swaps += 1
            old.resume()
        drafting.stop_redirecting(old.name, back=stays)
    drafting.counts.swaps += 1
    drafting.counts.moved_sequences += moves[SequenceMove.DONE]
    drafting.abandon(old)
    log.info("drafter swapped", old=old.name, new=new.name, moved=moves[SequenceMove.DONE])
    return moves[SequenceMove.DONE]


async def empty(drafting: Drafting, old: PooledDrafter) -> None:
    """Moves every sequence of a leaving drafter to other drafters, each once its new drafter has caught up. Sequences
    that no drafter takes in time continue without speculation."""
    old.drain()

    async def leave(drafted: DraftedRequest) -> None:
        new = drafting.another(drafted)
        if new is not None:
            await move(drafting, drafted, old, new)

    await asyncio.gather(*(leave(drafted) for drafted in drafting.drafted_by(old)))
    drafting.abandon(old)


def _incomplete(new: PooledDrafter, moves: Counter[SequenceMove]) -> ServiceError:
    return new.unreachable(f"it caught up with {moves[SequenceMove.DONE]} of {moves.total()} sequences")
