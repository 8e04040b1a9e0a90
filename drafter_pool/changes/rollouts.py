"""The roll-outs of a verifier's pool: who gets which share, who is withdrawn, and what became of those that ended."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from drafter_pool.changes.pool_operations import busy
from drafter_pool.changes.rollout import DrafterRollout
from drafter_pool.changes.sequence_move import move
from drafter_pool.changes.swap import move_all
from drafter_pool.drafter.pooled_drafter import PooledDrafter
from drafter_pool.routing.drafted_request import DraftedRequest
from drafter_pool.routing.drafting import Drafting
from drafter_pool.routing.roster import Roster
from draftwire.v1.drafter_pool_service_pb2 import Rollout, RolloutState
from draftwire.v1.error_reason_pb2 import ErrorReason
from service_runtime.errors import invalid_field, not_found
from service_runtime.process.logs import get_logger
from speculative_engine.engine.step_result import SequenceOutcome

log = get_logger(__name__)

_REMEMBERED = 16

RUNNING = RolloutState.ROLLOUT_STATE_RUNNING
PROMOTED = RolloutState.ROLLOUT_STATE_PROMOTED
WITHDRAWN = RolloutState.ROLLOUT_STATE_WITHDRAWN


class Rollouts:
    """A drafter takes part in one roll-out at most. Used in the event loop only."""

    def __init__(self, roster: Roster, drafting: Drafting) -> None:
        self._roster = roster
        self._drafting = drafting
        self._running: list[DrafterRollout] = []
        self._ended: deque[DrafterRollout] = deque(maxlen=_REMEMBERED)
        drafting.prefer = self._prefer

    def check_free(self, *drafters: str) -> None:
        """Raise ServiceError (BUSY) if one of the drafters takes part in a roll-out."""
        for name in drafters:
            if self.involving(name) is not None:
                raise busy(name, "a roll-out")

    def involving(self, name: str) -> DrafterRollout | None:
        """The roll-out a drafter takes part in."""
        return next((each for each in self._running if name in (each.old.name, each.new.name)), None)

    def of_new(self, name: str) -> DrafterRollout:
        """The roll-out of a new drafter. Raises ServiceError (NOT_FOUND)."""
        rollout = self.involving(name)
        if rollout is None or rollout.new.name != name:
            raise not_found(ErrorReason.ERROR_REASON_ROLLOUT_NOT_FOUND, f"no roll-out of {name!r} is under way")
        return rollout

    async def begin(self, old: PooledDrafter, new: PooledDrafter, share: float) -> DrafterRollout:
        """Give a drafter a share of another one's sequences, or change its share."""
        rollout = self.involving(new.name)
        if rollout is None:
            rollout = DrafterRollout(old.name, new.name, share)
            self._running.append(rollout)
            log.info("roll-out started", old=old.name, new=new.name, share=share)
        on_old, on_new = self._movable(old, new), self._movable(new, old)
        moving = rollout.set_share(share, len(on_old), len(on_new))
        if moving > 0:
            moves = [move(self._drafting, drafted, old, new) for drafted in on_old[:moving]]
        else:
            moves = [move(self._drafting, drafted, new, old) for drafted in on_new[:-moving]]
        await asyncio.gather(*moves)
        return rollout

    async def give_back(self, rollout: DrafterRollout, reason: str) -> None:
        """The new drafter gives its sequences back, and gets no new ones."""
        old, new = self._roster.get(rollout.old.name), self._roster.get(rollout.new.name)
        self.end(rollout, WITHDRAWN, reason)
        if new is not None:
            new.drain()
            if old is not None:
                await move_all(self._drafting, new, old)

    def end(self, rollout: DrafterRollout, state: RolloutState, reason: str) -> None:
        """A roll-out is over, for a reason."""
        if rollout in self._running:
            self._running.remove(rollout)
            self._ended.appendleft(rollout)
            rollout.end(state, reason)
            log.info("roll-out ended", new=rollout.new.name, state=RolloutState.Name(state), reason=reason)

    def removed(self, name: str) -> None:
        """A drafter is gone from the pool: its roll-out is over."""
        rollout = self.involving(name)
        if rollout is not None:
            state = WITHDRAWN if name == rollout.new.name else PROMOTED
            self.end(rollout, state, f"{name} is gone")

    def restart(self, name: str) -> None:
        """Another model drafts under a drafter's name: compare anew."""
        rollout = self.involving(name)
        for side in rollout.sides if rollout is not None else ():
            if side.name == name:
                side.restart()

    def count(self, outcome: SequenceOutcome) -> Sequence[DrafterRollout]:
        """Count a step of a sequence. Returns the roll-outs whose new drafter has proved significantly worse."""
        if not self._running:
            return ()
        drafters = {drafter.name for drafter in self._roster if drafter.has(outcome.sequence_id)}
        return [rollout for rollout in self._running if rollout.count(outcome, drafters)]

    def forget(self, sequence_id: int) -> None:
        """A sequence has ended."""
        for rollout in self._running:
            for side in rollout.sides:
                side.forget(sequence_id)

    def describe(self) -> list[Rollout]:
        """Those under way, then the last that ended, newest first."""
        return [self.describe_one(rollout) for rollout in (*self._running, *self._ended)]

    def describe_one(self, rollout: DrafterRollout) -> Rollout:
        """The state of one."""
        sequences: dict[str, int] = {}
        for drafter in self._roster:
            sequences[drafter.name] = sequences.get(drafter.name, 0) + drafter.sequences
        return rollout.describe(sequences)

    def _prefer(self, chosen: PooledDrafter, eligible: Sequence[PooledDrafter]) -> PooledDrafter:
        """Where one of a roll-out's two was chosen, and the other might have been, the share decides."""
        rollout = self.involving(chosen.name)
        if rollout is None:
            return chosen
        by_name = {drafter.name: drafter for drafter in eligible}
        if not all(side.name in by_name for side in rollout.sides):
            return chosen
        return by_name[rollout.next_side().name]

    def _movable(self, drafter: PooledDrafter, other: PooledDrafter) -> list[DraftedRequest]:
        return [
            drafted
            for drafted in self._drafting.drafted_by(drafter)
            if not drafted.names and not other.has(drafted.sequence_id) and drafted.takes(other)
        ]


def check_share(share: float) -> None:
    """Raise ServiceError (INVALID_FIELD) unless a share is in (0, 1]."""
    if not 0 < share <= 1:
        raise invalid_field("share", f"must be in (0, 1], got {share}")
