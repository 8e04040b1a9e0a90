"""How much a drafter may say on a stream: as much as what it was told can be answered with."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import grpc

from draftwire.v1.drafter_service_pb2 import DraftResponse
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.proposal_pb2 import ProposalBatch
from service_runtime.errors import ServiceError

_SLACK = 1024
"""Messages beyond: those that answer nothing, as that its model was replaced, or of kinds not known here yet."""
_VERDICTS = 16
"""Verdicts of a sequence whose answers may come all at once. What was not said to more of them cannot be made up for:
a drafter that falls silent does not save up for a flood."""
_MESSAGE_BYTES = 1 << 20
"""Bytes of a message that count as one more message, whatever they are."""
_LATE_SECONDS = 5.0
"""Seconds after the end of a sequence in which messages for it are still expected."""
_OPENING = 2
"""Messages that answer an opening beside nodes: that it has caught up, and that it failed."""


class FloodLimit:
    """The messages that a drafter may still send.

    Reading costs the verifier time in its event loop, whatever comes of what is read, proposals that come too late
    included. A drafter that keeps to its credit says at most so many nodes of a sequence after its opening and after
    each verdict, each in a message of its own at worst; all beyond is a flood, and ends the stream. A pong that no ping
    asked for is one, too.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        """now: seconds, from any start."""
        self._left = self._most = _SLACK
        self._pings = 0
        """Of those that were sent, how many are not answered."""
        self._now = now
        self._closed: deque[tuple[float, int]] = deque()
        """Closed sequences that still count in `_most`: the time of their end, and their part."""

    def opened(self, max_tree_nodes: int) -> None:
        """A sequence was opened, with so much credit."""
        self._most += _room(max_tree_nodes)
        self._add(_OPENING + 2 * max_tree_nodes)

    def closed(self, max_tree_nodes: int) -> None:
        """A sequence with so much credit is open no longer; what is under way of it may still come."""
        self._closed.append((self._now(), _room(max_tree_nodes)))

    def told(self, max_tree_nodes: int) -> None:
        """A verdict was sent of a sequence with so much credit."""
        self._add(2 * max_tree_nodes)

    def asked(self) -> None:
        """A sign of life was asked for, which is answered once."""
        self._pings += 1

    def spend(self, message: DraftResponse, size: int = 0) -> None:
        """A message of so many bytes came. Raises ServiceError, before anything of it is looked at, when it is beyond
        the allowance."""
        kind = message.WhichOneof("message")
        if kind == "pong":
            self._pings -= 1
            if self._pings < 0:
                raise _flood()
            return
        batch = message.proposals if kind == "proposals" else None
        # A message may hold a million entries: they are looked at only where there can be so many.
        if batch is not None and len(batch.proposals) > self._left:
            raise _flood()
        self._left -= 1 + size // _MESSAGE_BYTES + (0 if batch is None else _entries(batch))
        if self._left < 0:
            raise _flood()

    def _add(self, entries: int) -> None:
        while self._closed and self._now() - self._closed[0][0] > _LATE_SECONDS:
            self._most -= self._closed.popleft()[1]
        self._left = min(self._left + entries, self._most)


def _room(max_tree_nodes: int) -> int:
    return _OPENING + 2 * max_tree_nodes * _VERDICTS


def _entries(batch: ProposalBatch) -> int:
    """Nodes of a message, or what takes as long to read. What nodes are drawn from counts by its bytes alone: it has
    the length of the vocabulary, if the rule of acceptance wants it."""
    return sum(max(1, len(each.token_ids), len(each.parent_ids), len(each.log_probs)) for each in batch.proposals)


def _flood() -> ServiceError:
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        ErrorReason.ERROR_REASON_CREDIT_EXCEEDED,
        "the drafter says more than it was asked for",
    )
