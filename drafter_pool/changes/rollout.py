"""One drafter taking another's place by degrees: shares, counts, and the verdict on the new one."""

from __future__ import annotations

import time

from drafter_pool.changes.acceptance_comparison import SAMPLE_STEPS, Sample, significantly_worse, welch_t
from drafter_pool.drafter.source import drafter_of
from draftwire.v1.drafter_pool_service_pb2 import Rollout, RolloutSide, RolloutState
from speculative_engine.engine.step_result import SequenceOutcome


class Side:
    """What one of the two drafters did during a roll-out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.given = 0
        """Sequences it was given since the share was last set."""
        self.steps = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.sample = Sample()
        """Accepted tokens per step, in means over the steps of one sequence."""
        self._unfinished: dict[int, tuple[int, int]] = {}

    def count(self, outcome: SequenceOutcome, alone: bool) -> bool:
        """Count a step of a sequence; True if it completed a sample.

        alone: whether the sequence has this one of the two drafters only, so that its steps can be compared.
        """
        drafted = sum(nodes for source, nodes in outcome.drafted.items() if drafter_of(source) == self.name)
        accepted = sum(source is not None and drafter_of(source) == self.name for source in outcome.sources)
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

    def forget(self, sequence_id: int) -> None:
        """A sequence ended or moved before its sample was complete."""
        self._unfinished.pop(sequence_id, None)

    def restart(self) -> None:
        """Compare anew: another model drafts under this name."""
        self.sample = Sample()
        self._unfinished.clear()


class DrafterRollout:
    """A roll-out while it runs and after it has ended."""

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
        """The old one and the new one."""
        return self.old, self.new

    def set_share(self, share: float, old_sequences: int, new_sequences: int) -> int:
        """Set the share. Returns how many running sequences have to move to the new side, negative for the old one,
        to make the new one's share of them nearest to it."""
        self.share = share
        total = old_sequences + new_sequences
        wanted = round(share * total)
        self.old.given, self.new.given = total - wanted, wanted
        return wanted - new_sequences

    def next_side(self) -> Side:
        """Who gets the next sequence: the new one, if that brings its share of all sequences given since the share
        was set nearer to it."""
        total = self.old.given + self.new.given + 1
        nearer = abs((self.new.given + 1) / total - self.share) < abs(self.new.given / total - self.share)
        side = self.new if nearer else self.old
        side.given += 1
        return side

    def count(self, outcome: SequenceOutcome, drafters: set[str]) -> bool:
        """Count a step of a sequence, for which these drafters draft; True if the new side has proved worse."""
        fresh = False
        for side, other in ((self.old, self.new), (self.new, self.old)):
            if side.name in drafters or any(drafter_of(source) == side.name for source in outcome.drafted):
                fresh |= side.count(outcome, alone=side.name in drafters and other.name not in drafters)
        return fresh and significantly_worse(self.new.sample, self.old.sample)

    def verdict(self) -> str:
        """The numbers of the comparison."""
        new, old = self.new.sample, self.old.sample
        return (
            f"{new.mean:.3f} accepted tokens a step against {old.mean:.3f} "
            f"(t = {welch_t(new, old):.1f}, {new.count} and {old.count} samples of {SAMPLE_STEPS} steps)"
        )

    def end(self, state: RolloutState, reason: str) -> None:
        """The roll-out is over."""
        self.state, self.reason, self._ended_at = state, reason, time.time()

    def describe(self, sequences: dict[str, int]) -> Rollout:
        """As ListRollouts tells it. sequences: how many each drafter has now."""
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
    )
