"""Rollouts: a new drafter gradually replaces another, and is withdrawn if it proves worse."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

from draftwire.v1.drafter_pool_service_pb2 import Rollout, RolloutSide, RolloutState
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.engine.planning.running_mean import RunningMean
from draftwire_core.pool.changes.acceptance_comparison import (
    SAMPLE_STEPS,
    AcceptanceSample,
    significantly_worse,
    welch_t,
)
from draftwire_core.pool.changes.pool_operations import busy
from draftwire_core.pool.changes.swap import move, move_all
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.drafter.source import drafter_of
from draftwire_core.pool.routing.drafted_request import DraftedRequest
from draftwire_core.pool.routing.drafting import Drafting
from draftwire_core.pool.routing.roster import Roster
from draftwire_core.runtime.duration import duration
from draftwire_core.runtime.errors import invalid_field, not_found
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)

_DRAFTING_WEIGHT = 0.1
"""Weight of a step in the mean of a drafter's time, by which times are bounded that the machine held up."""


class Side:
    """One of a rollout's two drafters, and its counts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given = 0
        """Sequences given to this drafter since the share was last set."""
        self.steps = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.sequence_steps = 0
        self.drafting_seconds = 0.0
        self._drafting = RunningMean(weight=_DRAFTING_WEIGHT)
        self.sample = AcceptanceSample()
        """Accepted tokens per step; each number is a mean over SAMPLE_STEPS steps of one sequence."""
        self._unfinished: dict[int, tuple[int, int]] = {}

    def count(self, outcome: SequenceOutcome, alone: bool) -> bool:
        """Counts a step of a sequence. Returns whether it completed a sample.

        alone: whether the sequence has only this one of the two drafters, so that its steps can be compared.
        """
        drafted = sum(nodes for source, nodes in outcome.drafted.items() if drafter_of(source) == self.name)
        accepted = sum(source is not None and drafter_of(source) == self.name for source in outcome.sources)
        self.sequence_steps += 1
        self.steps += drafted > 0
        self.draft_tokens += drafted
        self.accepted_tokens += accepted
        if not alone:
            self.forget(outcome.sequence_id)
            return False
        steps, total = self._unfinished.pop(outcome.sequence_id, (0, 0))
        steps, total = steps + 1, total + accepted
        if steps < SAMPLE_STEPS:
            self._unfinished[outcome.sequence_id] = steps, total
            return False
        self.sample.add(total / steps)
        return True

    def count_drafting(self, seconds: float) -> None:
        """Counts the time that a drafter in the engine's thread took for a step."""
        self.drafting_seconds += self._drafting.add(seconds)

    def forget(self, sequence_id: int) -> None:
        """Drops the incomplete sample of a sequence that has ended or moved."""
        self._unfinished.pop(sequence_id, None)

    def restart(self) -> None:
        """Restarts the comparison, because another model drafts under this name."""
        self.sample = AcceptanceSample()
        self._unfinished.clear()


class DrafterRollout:
    """A rollout, in progress or ended."""

    def __init__(self, old: str, new: str, share: float) -> None:
        self.old = Side(old)
        self.new = Side(new)
        self.share = share
        self.state = RolloutState.ROLLOUT_STATE_RUNNING
        self.reason = ""
        self._started_at = time.time()
        self._ended_at: float | None = None

    @property
    def sides(self) -> tuple[Side, Side]:
        """The old side and the new side."""
        return self.old, self.new

    def set_share(self, share: float, old_sequences: int, new_sequences: int) -> int:
        """Sets the share. Returns the number of running sequences to move to the new side, negative to move them back,
        so that its part of them comes closest to the share."""
        self.share = share
        total = old_sequences + new_sequences
        wanted = round(share * total)
        self.old.given, self.new.given = total - wanted, wanted
        return wanted - new_sequences

    def next_side(self) -> Side:
        """Returns the side that gets the next sequence: the new one if that raises its part of all sequences given
        since the share was set closer to the share."""
        total = self.old.given + self.new.given + 1
        nearer = abs((self.new.given + 1) / total - self.share) < abs(self.new.given / total - self.share)
        side = self.new if nearer else self.old
        side.given += 1
        return side

    def count(self, outcome: SequenceOutcome, drafters: set[str]) -> bool:
        """Counts a step of a sequence. drafters: names of those that draft for it. Returns whether the new side has
        proved worse."""
        fresh = False
        for side, other in ((self.old, self.new), (self.new, self.old)):
            if side.name in drafters or any(drafter_of(source) == side.name for source in outcome.drafted):
                fresh |= side.count(outcome, alone=side.name in drafters and other.name not in drafters)
        return fresh and significantly_worse(self.new.sample, self.old.sample)

    def verdict(self) -> str:
        """Returns the comparison's figures as text."""
        new, old = self.new.sample, self.old.sample
        return (
            f"{new.mean:.3f} accepted tokens per step against {old.mean:.3f} "
            f"(t = {welch_t(new, old):.1f}, {new.count} and {old.count} samples of {SAMPLE_STEPS} steps)"
        )

    def end(self, state: RolloutState, reason: str) -> None:
        """Ends the rollout."""
        self.state, self.reason, self._ended_at = state, reason, time.time()

    def describe(self, sequences: dict[str, int]) -> Rollout:
        """Returns the rollout in the form of ListRollouts. sequences: number of open sequences by drafter name."""
        described = Rollout(
            old=_describe(self.old, sequences),
            new=_describe(self.new, sequences),
            share=self.share,
            state=self.state,
            reason=self.reason,
        )
        described.started_at.FromNanoseconds(round(self._started_at * 1e9))
        if self._ended_at is not None:
            described.ended_at.FromNanoseconds(round(self._ended_at * 1e9))
        return described


def _describe(side: Side, sequences: dict[str, int]) -> RolloutSide:
    return RolloutSide(
        name=side.name,
        sequences=sequences.get(side.name, 0),
        steps=side.steps,
        draft_tokens=side.draft_tokens,
        accepted_tokens=side.accepted_tokens,
        sequence_steps=side.sequence_steps,
        drafting_time=duration(side.drafting_seconds),
    )


_REMEMBERED = 16

PROMOTED = RolloutState.ROLLOUT_STATE_PROMOTED
WITHDRAWN = RolloutState.ROLLOUT_STATE_WITHDRAWN


class Rollouts:
    """The rollouts in progress, and the most recently ended ones. A drafter takes part in at most one rollout. Used in
    the event loop only."""

    def __init__(self, roster: Roster, drafting: Drafting) -> None:
        self._roster = roster
        self._drafting = drafting
        self._running: list[DrafterRollout] = []
        self._ended: deque[DrafterRollout] = deque(maxlen=_REMEMBERED)
        drafting.prefer = self._prefer
        drafting.rival = self._rival

    def check_free(self, *drafters: str) -> None:
        """Raises ServiceError (BUSY) if one of the drafters takes part in a rollout."""
        for name in drafters:
            if self.involving(name) is not None:
                raise busy(name, "a rollout")

    def involving(self, name: str) -> DrafterRollout | None:
        """Returns the rollout in which a drafter takes part; None if there is none."""
        return next((each for each in self._running if name in (each.old.name, each.new.name)), None)

    def of_new(self, name: str) -> DrafterRollout:
        """Returns the rollout whose new drafter has this name. Raises ServiceError (NOT_FOUND)."""
        rollout = self.involving(name)
        if rollout is None or rollout.new.name != name:
            raise not_found(ErrorReason.ERROR_REASON_ROLLOUT_NOT_FOUND, f"no rollout of {name!r} is under way")
        return rollout

    async def begin(self, old: PooledDrafter, new: PooledDrafter, share: float) -> DrafterRollout:
        """Starts a rollout, or changes its share, and moves running sequences accordingly."""
        rollout = self.involving(new.name)
        if rollout is None:
            rollout = DrafterRollout(old.name, new.name, share)
            self._running.append(rollout)
            new.pause_policy.fill()  # a pause from before would be steps without accepted tokens
            log.info("rollout started", old=old.name, new=new.name, share=share)
        on_old, on_new = self._movable(old, new), self._movable(new, old)
        moving = rollout.set_share(share, len(on_old), len(on_new))
        if moving > 0:
            moves = [move(self._drafting, drafted, old, new) for drafted in on_old[:moving]]
        else:
            moves = [move(self._drafting, drafted, new, old) for drafted in on_new[:-moving]]
        await asyncio.gather(*moves)
        return rollout

    async def give_back(self, rollout: DrafterRollout, reason: str) -> None:
        """Withdraws a rollout: drains the new drafter and moves its sequences back."""
        old, new = self._roster.get(rollout.old.name), self._roster.get(rollout.new.name)
        self.end(rollout, WITHDRAWN, reason)
        if new is not None:
            new.drain()
            if old is not None:
                await move_all(self._drafting, new, old)

    def end(self, rollout: DrafterRollout, state: RolloutState, reason: str) -> None:
        """Ends a rollout for a reason; does nothing if it has ended."""
        if rollout in self._running:
            self._running.remove(rollout)
            self._ended.appendleft(rollout)
            rollout.end(state, reason)
            log.info("rollout ended", new=rollout.new.name, state=RolloutState.Name(state), reason=reason)

    def removed(self, name: str) -> None:
        """Ends the rollout of a drafter that has left the pool."""
        rollout = self.involving(name)
        if rollout is not None:
            state = WITHDRAWN if name == rollout.new.name else PROMOTED
            self.end(rollout, state, f"{name} has left the pool")

    def restart(self, name: str) -> None:
        """Restarts the comparison of a drafter, because its model has changed."""
        rollout = self.involving(name)
        for side in rollout.sides if rollout is not None else ():
            if side.name == name:
                side.restart()

    @property
    def running(self) -> bool:
        """Whether any rollout is in progress."""
        return bool(self._running)

    def count(self, outcome: SequenceOutcome) -> Sequence[DrafterRollout]:
        """Counts a step of a sequence. Returns the rollouts whose new drafter has proved significantly worse."""
        if not self._running:
            return ()
        drafters = {drafter.name for drafter in self._roster if drafter.has(outcome.sequence_id)}
        return [rollout for rollout in self._running if rollout.count(outcome, drafters)]

    def count_drafting(self, name: str, seconds: float) -> None:
        """Counts the time that a drafter in the engine's thread took for a step."""
        rollout = self.involving(name)
        for side in rollout.sides if rollout is not None else ():
            if side.name == name:
                side.count_drafting(seconds)

    def forget(self, sequence_id: int) -> None:
        """Drops a sequence that has ended."""
        for rollout in self._running:
            for side in rollout.sides:
                side.forget(sequence_id)

    def describe(self) -> list[Rollout]:
        """Returns all rollouts: those in progress, then the most recently ended ones, newest first."""
        return [self.describe_one(rollout) for rollout in (*self._running, *self._ended)]

    def describe_one(self, rollout: DrafterRollout) -> Rollout:
        """Returns the state of one rollout."""
        sequences: dict[str, int] = {}
        for drafter in self._roster:
            sequences[drafter.name] = sequences.get(drafter.name, 0) + drafter.sequences
        return rollout.describe(sequences)

    def _prefer(self, chosen: PooledDrafter, eligible: Sequence[PooledDrafter]) -> PooledDrafter:
        """Lets the share decide if one drafter of a rollout was chosen and the other is eligible too."""
        rollout = self.involving(chosen.name)
        if rollout is None:
            return chosen
        by_name = {drafter.name: drafter for drafter in eligible}
        if not all(side.name in by_name for side in rollout.sides):
            return chosen
        return by_name[rollout.next_side().name]

    def _rival(self, drafter: PooledDrafter) -> PooledDrafter | None:
        """Returns the other drafter of a drafter's rollout."""
        rollout = self.involving(drafter.name)
        if rollout is None:
            return None
        return self._roster.get((rollout.new if drafter.name == rollout.old.name else rollout.old).name)

    def _movable(self, drafter: PooledDrafter, other: PooledDrafter) -> list[DraftedRequest]:
        return [
            drafted
            for drafted in self._drafting.drafted_by(drafter)
            if not drafted.names and not other.has(drafted.sequence_id) and drafted.takes(other)
        ]


def check_share(share: float) -> None:
    """Raises ServiceError (INVALID_FIELD) unless a share is in (0, 1]."""
    if not 0 < share <= 1:
        raise invalid_field("share", f"must be in (0, 1], got {share}")
