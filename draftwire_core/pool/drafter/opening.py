"""One opening of a sequence with a drafter: its held verdicts, and the sending times of the others."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field

import torch

from draftwire.v1.verdict_pb2 import VerdictBatch
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.pool.drafter.draft_messages import hidden_state

_MOST_SENT = 64
"""Maximum number of committed lengths whose sending times are kept."""


@dataclass(slots=True)
class DrafterOpening:
    """An opening, from OpenSequence to the end of the sequence with this drafter."""

    epoch: int
    """Number of the opening, counted over all streams to the drafter."""
    request_id: str
    """The request's name in logs."""
    max_tree_nodes: int
    """Credit of the opening: maximum live nodes in the sequence's tree."""
    always_draft: bool = False
    """Whether the sequence's verdicts are sent even while the drafter is paused."""
    ready: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Resolves to True once the drafter has caught up, to False if it never will."""
    held: bool = False
    """Whether there are committed tokens that have not been sent yet."""
    _length: int = 0
    """Committed length after the held tokens."""
    _tokens: list[int] = field(default_factory=list)
    """Held tokens of one or more steps."""
    _accepted: int = 0
    """Accepted draft tokens among the held ones."""
    _state: torch.Tensor | None = None
    """The target's hidden state [hidden] at the last held token, for a drafter that drafts from it."""
    _sent: dict[int, float] = field(default_factory=dict)
    """Sending times by committed length, shortest first, from the last length that a proposal was based on."""

    def hold(self, outcome: SequenceOutcome, *, hidden_states: bool) -> None:
        """Holds a step's committed tokens until they are sent. hidden_states: whether the drafter takes them."""
        self.held = True
        self._length = outcome.committed_length
        self._tokens += outcome.tokens
        self._accepted += outcome.accepted
        if hidden_states and outcome.hidden_state is not None:
            self._state = outcome.hidden_state

    def write(self, batch: VerdictBatch, sequence_id: int, now: float) -> None:
        """Adds the held tokens to an outgoing batch as one verdict."""
        batch.verdicts.add(
            sequence_id=sequence_id,
            epoch=self.epoch,
            committed_length=self._length,
            token_ids=self._tokens,
            accepted=self._accepted,
            hidden_state=hidden_state(self._state),
        )
        self.sent(self._length, now)
        self.held, self._tokens, self._accepted, self._state = False, [], 0, None

    def sent(self, committed_length: int, now: float) -> None:
        """Records the time at which a committed length was sent to the drafter."""
        if len(self._sent) >= _MOST_SENT:
            del self._sent[next(iter(self._sent))]
        self._sent[committed_length] = now

    def sent_at(self, committed_length: int) -> float:
        """Returns the time at which a committed length was sent to the drafter, or -inf; drops those of shorter
        lengths."""
        while self._sent and next(iter(self._sent)) < committed_length:
            del self._sent[next(iter(self._sent))]
        return self._sent.get(committed_length, -math.inf)
