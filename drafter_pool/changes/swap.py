"""Swapping a drafter for another, and emptying one that goes."""

from __future__ import annotations

import asyncio
from collections import Counter

from drafter_pool.changes.sequence_move import Move, move
from drafter_pool.drafter.pooled_drafter import PooledDrafter
from drafter_pool.routing.drafted_request import DraftedRequest
from drafter_pool.routing.drafting import Drafting
from service_runtime.errors import ServiceError
from service_runtime.process.logs import get_logger

log = get_logger(__name__)


async def move_all(drafting: Drafting, old: PooledDrafter, new: PooledDrafter) -> Counter[Move]:
    """Move the sequences of one drafter to another. Returns how many moves ended in which way."""
    return Counter(await asyncio.gather(*(move(drafting, drafted, old, new) for drafted in drafting.drafted_by(old))))


async def swap(drafting: Drafting, old: PooledDrafter, new: PooledDrafter) -> int:
    """Move every sequence of one drafter to another; how many moved. The old one then drains and has none.

    Raises ServiceError (UNAVAILABLE) if the new one is not ready, or has not caught up with every sequence in time:
    then the old one goes on, and what has moved stays where it is.
    """
    if not new.ready:
        raise new.unreachable()
    old.drain()
    drafting.redirect(old.name, new.name)
    stays = True
    try:
        moves = await move_all(drafting, old, new)
        if moves[Move.LATE] or not new.ready:
            raise _incomplete(new, moves)
        stays = False
    finally:
        if stays:
            drafting.counts.failed_swaps += 1
            old.resume()
        drafting.stop_redirecting(old.name, back=stays)
    drafting.counts.swaps += 1
    drafting.counts.moved_sequences += moves[Move.DONE]
    drafting.abandon(old)
    log.info("drafter swapped", old=old.name, new=new.name, moved=moves[Move.DONE])
    return moves[Move.DONE]


async def empty(drafting: Drafting, old: PooledDrafter) -> None:
    """Move every sequence of a drafter that goes to others, each once its new drafter has caught up; what nobody
    takes in time goes on plainly."""
    old.drain()

    async def leave(drafted: DraftedRequest) -> None:
        new = drafting.another(drafted)
        if new is not None:
            await move(drafting, drafted, old, new)

    await asyncio.gather(*(leave(drafted) for drafted in drafting.drafted_by(old)))
    drafting.abandon(old)


def _incomplete(new: PooledDrafter, moves: Counter[Move]) -> ServiceError:
    return new.unreachable(f"it has caught up with {moves[Move.DONE]} of {moves.total()} sequences")
