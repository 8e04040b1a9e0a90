"""Running totals of the planner's decisions and their results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class _PutOff(NamedTuple):
    """A step delayed to wait for proposals."""

    since: float
    sequence_ids: frozenset[int]
    expected_tokens: float


@dataclass(slots=True)
class PlanningRecord:
    """Totals over all steps that decoded a sequence. One thread updates them; any thread may read."""

    steps: int = 0
    sequences: int = 0
    """Number of sequences decoded, summed over steps."""
    draft_tokens: int = 0
    """Number of draft tokens verified."""
    last_draft_tokens: int = 0
    """Number of draft tokens verified in the last step."""
    probe_rows: int = 0
    """Number of rows computed for drafters to learn from, not for verification."""
    waits: int = 0
    """Number of steps delayed to wait for proposals."""
    wait_seconds: float = 0.0
    """Total delay of the delayed steps."""
    expected_tokens: float = 0.0
    """Tokens that the delayed steps would have committed without the delay, by their plans."""
    committed_tokens: int = 0
    """Tokens that the delayed steps committed."""
    _put_off: _PutOff | None = field(default=None, init=False)

    def put_off(self, now: float, sequence_ids: frozenset[int], expected_tokens: float) -> None:
        """Records that a step over these sequences, expected to commit so many tokens, is delayed; repeated calls count
        once."""
        if self._put_off is None or self._put_off.sequence_ids != sequence_ids:
            self._put_off = _PutOff(now, sequence_ids, expected_tokens)

    def waited(self, started: float, sequence_ids: frozenset[int]) -> float:
        """Returns the seconds that a step over these sequences, which starts now, was delayed."""
        if self._put_off is None or self._put_off.sequence_ids != sequence_ids:
            return 0.0
        return started - self._put_off.since

    def stepped(self, started: float, sequence_ids: frozenset[int], draft_tokens: int, committed_tokens: int) -> None:
        """Records a finished step over these sequences."""
        self.steps += 1
        self.sequences += len(sequence_ids)
        self.draft_tokens += draft_tokens
        self.last_draft_tokens = draft_tokens
        put_off, self._put_off = self._put_off, None
        # A step over other sequences is not the delayed one and cannot be compared with it.
        if put_off is not None and put_off.sequence_ids == sequence_ids:
            self.waits += 1
            self.wait_seconds += started - put_off.since
            self.expected_tokens += put_off.expected_tokens
            self.committed_tokens += committed_tokens
