"""What the planner has decided, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class _PutOff(NamedTuple):
    """A step that waits for proposals."""

    since: float
    sequence_ids: frozenset[int]
    expected_tokens: float


@dataclass(slots=True)
class PlanningRecord:
    """Sums over the steps that decoded a sequence. One thread counts; any may read."""

    steps: int = 0
    sequences: int = 0
    """Sequences decoded, counted anew in each step."""
    draft_tokens: int = 0
    """Draft tokens verified."""
    last_draft_tokens: int = 0
    """Of them in the last step."""
    probe_rows: int = 0
    """Rows computed for drafters to learn from, and not to verify."""
    waits: int = 0
    """Steps that were put off for proposals."""
    wait_seconds: float = 0.0
    """By how much."""
    expected_tokens: float = 0.0
    """Tokens that these would have committed, by their plans, had they not been put off."""
    committed_tokens: int = 0
    """Tokens that they committed."""
    _put_off: _PutOff | None = field(default=None, init=False)

    def put_off(self, now: float, sequence_ids: frozenset[int], expected_tokens: float) -> None:
        """A step over these sequences that would commit so many tokens now has to wait; told any number of times."""
        if self._put_off is None or self._put_off.sequence_ids != sequence_ids:
            self._put_off = _PutOff(now, sequence_ids, expected_tokens)

    def stepped(self, started: float, sequence_ids: frozenset[int], draft_tokens: int, committed_tokens: int) -> None:
        """A step over these sequences was made."""
        self.steps += 1
        self.sequences += len(sequence_ids)
        self.draft_tokens += draft_tokens
        self.last_draft_tokens = draft_tokens
        put_off, self._put_off = self._put_off, None
        # With other sequences it is another step than the one that was put off, and there is nothing to compare.
        if put_off is not None and put_off.sequence_ids == sequence_ids:
            self.waits += 1
            self.wait_seconds += started - put_off.since
            self.expected_tokens += put_off.expected_tokens
            self.committed_tokens += committed_tokens
