"""The sequences open with a drafter: the held verdicts of each opening, and the sending times of the others."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

from draftwire.v1.verdict_pb2 import VerdictBatch
from draftwire_core.engine.engine.step_result import SequenceOutcome
from draftwire_core.pool.drafter.draft_messages import hidden_state
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest
from draftwire_core.pool.standing.flood_limit import FloodLimit

NOT_SENT = -1
"""The epoch of an opening that waits for the end of a pause."""
_MOST_SENT = 64
"""Maximum number of committed lengths whose sending times are kept."""


@dataclass(slots=True)
class DrafterOpening:
    """An opening, from OpenSequence to the end of the sequence with this drafter."""

    epoch: int
    """Number of the opening, counted over all streams to the drafter; NOT_SENT before it is sent."""
    request_id: str
    """The request's name in logs."""
    max_tree_nodes: int
    """Credit of the opening: maximum live nodes in the sequence's tree."""
    always_draft: bool = False
    """Whether the sequence's verdicts are sent even while the drafter is paused."""
    reads_features: bool = False
    """Whether the drafter cannot catch up without features, of which it gets none while it is paused."""
    ready: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Resolves to True once the drafter has caught up, or is paused; to False if it never will catch up."""
    caught_up: bool = False
    """Whether the drafter has caught up."""
    waiting: SpeculatedRequest | None = None
    """The request, until the opening is sent: a paused drafter gets none."""
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

    def waits(self, *, paused: bool) -> bool:
        """Whether the drafter has nothing to do for the sequence until a pause ends. paused: whether it is paused."""
        return self.waiting is not None or (paused and self.reads_features and not self.always_draft)

    def catch_up(self) -> None:
        """Records that the drafter has caught up."""
        self.caught_up = True
        if not self.ready.done():
            self.ready.set_result(True)

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


class OpenSequences:
    """The sequences open on one stream, with the allowances that they have in its flood limit."""

    def __init__(self, last_epoch: int, flood_limit: FloodLimit, reads_features: bool = False) -> None:
        """last_epoch: epoch of the last opening on earlier streams. reads_features: whether the drafter does."""
        self.epoch = last_epoch
        """Epoch of the last opening."""
        self._flood_limit = flood_limit
        self._reads_features = reads_features
        self._openings: dict[int, DrafterOpening] = {}

    def __len__(self) -> int:
        return len(self._openings)

    def __iter__(self) -> Iterator[int]:
        return iter(self._openings)

    def get(self, sequence_id: int, epoch: int | None = None) -> DrafterOpening | None:
        """Returns the opening of a sequence; None if it is not open, or by an opening of another epoch."""
        opening = self._openings.get(sequence_id)
        return opening if opening is not None and epoch in (None, opening.epoch) else None

    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> DrafterOpening:
        """Opens a sequence, which waits for `begin`. max_tree_nodes: its credit."""
        self.forget(request.sequence_id)
        order = request.order
        opening = DrafterOpening(NOT_SENT, order.request_id, max_tree_nodes, order.always_draft, self._reads_features)
        opening.waiting = request
        self._openings[request.sequence_id] = opening
        self._flood_limit.opened(max_tree_nodes)
        return opening

    def begin(self, opening: DrafterOpening, now: float) -> SpeculatedRequest:
        """Gives a waiting opening its epoch. Returns the request, whose committed tokens are sent now."""
        request, opening.waiting = opening.waiting, None
        assert request is not None, "an opening begins once"
        self.epoch += 1
        opening.epoch = self.epoch
        opening.sent(len(request.tokens), now)
        return request

    @property
    def waiting(self) -> list[DrafterOpening]:
        """The openings that have not begun, of requests that continue."""
        return [each for each in self._openings.values() if each.waiting is not None and not each.waiting.finished]

    def catching_up(self, *, paused: bool) -> bool:
        """Whether the drafter has yet to catch up with a sequence. paused: whether it is paused; sequences that always
        draft then do not count."""
        return any(
            not (opening.waits(paused=paused) or opening.caught_up or (paused and opening.always_draft))
            for opening in self._openings.values()
        )

    @property
    def working(self) -> bool:
        """Whether the drafter has something to compute even during a pause."""
        return any(
            opening.always_draft or not (opening.waits(paused=True) or opening.caught_up)
            for opening in self._openings.values()
        )

    def forget(self, sequence_id: int) -> bool:
        """Drops a sequence. Returns whether it was open."""
        opening = self._openings.pop(sequence_id, None)
        if opening is None:
            return False
        self._flood_limit.closed(opening.max_tree_nodes)
        if not opening.ready.done():
            opening.ready.set_result(False)
        return True

    def hold(self, outcomes: Iterable[SequenceOutcome], *, paused: bool, hidden_states: bool) -> tuple[int, bool]:
        """Holds a step's committed tokens. Returns the number of sequences that were drafted for, or wait for the end
        of a pause, and whether any of those held always drafts. paused: whether the drafter is paused."""
        drafted_for, on_demand = 0, False
        for outcome in outcomes:
            opening = self._openings.get(outcome.sequence_id)
            if opening is not None:
                if opening.waiting is None:
                    opening.hold(outcome, hidden_states=hidden_states)
                drafted_for += opening.caught_up or opening.waits(paused=paused)
                on_demand |= opening.always_draft
        return drafted_for, on_demand

    def verdicts(self, *, paused: bool, max_tree_nodes: int, now: float) -> VerdictBatch | None:
        """Returns the verdicts on all held tokens, during a pause for sequences that always draft; None if there are
        none. max_tree_nodes: most nodes that the drafter is to send for each."""
        batch = VerdictBatch()
        allowed = []
        for sequence_id, opening in self._openings.items():
            if opening.held and (opening.always_draft or not paused):
                opening.write(batch, sequence_id, now)
                allowed.append(opening.max_tree_nodes)
                self._flood_limit.told(opening.max_tree_nodes)
        if not allowed:
            return None
        if max_tree_nodes < min(allowed):
            batch.max_tree_nodes = max_tree_nodes
        return batch
