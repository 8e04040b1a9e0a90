"""The flood limit: drafters, and callers that draft, may send only as much as the verifier's messages can call for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import grpc

from draftwire.v1.drafter_service_pb2 import DraftResponse
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.proposal_pb2 import Proposal
from draftwire_core.runtime.errors import ServiceError

_SLACK = 1024
"""Extra messages allowed: unsolicited ones, such as a model replacement, and ones of kinds unknown here."""
_VERDICTS = 16
"""Verdicts of a sequence whose answers may arrive all at once. Allowance beyond that expires, so that a silent drafter
cannot save up for a flood."""
_MESSAGE_BYTES = 1 << 20
"""Bytes of a message that count as one more message, regardless of their content."""
_LATE_SECONDS = 5.0
"""Time after the end of a sequence in which messages for it are still expected."""
_OPENING = 2
"""Messages that an opening may cause besides nodes: caught up, and failed."""


class FloodLimit:
    """The number of messages that a drafter may still send.

    Reading any message costs the verifier time in its event loop, even a proposal that arrives too late. A drafter that
    respects its credit sends at most that many nodes after an opening and after each verdict, in the worst case one per
    message. Anything beyond that is a flood and ends the stream, and so does an unsolicited pong.
    """

    def __init__(self, now: Callable[[], float], sender: str = "the drafter") -> None:
        """now: a clock in seconds with any origin. sender: who sends the messages, for the error."""
        self._sender = sender
        self._left = self._most = _SLACK
        self._pings = 0
        """Number of unanswered pings."""
        self._now = now
        self._closed: deque[tuple[float, int]] = deque()
        """Closed sequences that are still included in `_most`: the time of their end, and their part of it."""

    def opened(self, max_tree_nodes: int) -> None:
        """Adds the allowance of an opened sequence. max_tree_nodes: its credit."""
        self._most += _room(max_tree_nodes)
        self._add(_OPENING + 2 * max_tree_nodes)

    def closed(self, max_tree_nodes: int) -> None:
        """Counts a closed sequence, whose last messages may still arrive. max_tree_nodes: its credit."""
        self._closed.append((self._now(), _room(max_tree_nodes)))

    def told(self, max_tree_nodes: int) -> None:
        """Adds the allowance of a sent verdict. max_tree_nodes: credit of the sequence."""
        self._add(2 * max_tree_nodes)

    def asked(self) -> None:
        """Allows one pong, for a ping that was sent."""
        self._pings += 1

    def spend(self, message: DraftResponse, size: int = 0) -> None:
        """Deducts a received message of `size` bytes. Raises ServiceError if it exceeds the allowance, before its
        entries are processed."""
        kind = message.WhichOneof("message")
        if kind == "pong":
            self._pings -= 1
            self._left -= size // _MESSAGE_BYTES
            if min(self._pings, self._left) < 0:
                raise self._flood()
            return
        self.spend_proposals(message.proposals.proposals if kind == "proposals" else (), size)

    def spend_proposals(self, proposals: Sequence[Proposal], size: int) -> None:
        """Deducts a received message of `size` bytes with some proposals, or none. Raises ServiceError as `spend`."""
        # A message may hold a million entries: their number is checked before they are read.
        if len(proposals) > self._left:
            raise self._flood()
        self._left -= 1 + size // _MESSAGE_BYTES + _entries(proposals)
        if self._left < 0:
            raise self._flood()

    def _add(self, entries: int) -> None:
        while self._closed and self._now() - self._closed[0][0] > _LATE_SECONDS:
            self._most -= self._closed.popleft()[1]
        self._left = min(self._left + entries, self._most)

    def _flood(self) -> ServiceError:
        return ServiceError(
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            ErrorReason.ERROR_REASON_CREDIT_EXCEEDED,
            f"{self._sender} sends more than it was asked for",
        )


def _room(max_tree_nodes: int) -> int:
    return _OPENING + 2 * max_tree_nodes * _VERDICTS


def _entries(proposals: Sequence[Proposal]) -> int:
    """Returns the number of proposals' nodes, or of entries that take as long to read. Draft distributions are as long
    as the vocabulary if the acceptance rule needs them, so their own entries count only by their bytes."""
    return sum(
        max(1, len(each.token_ids), len(each.parent_ids), len(each.log_probs), len(each.distributions))
        for each in proposals
    )
