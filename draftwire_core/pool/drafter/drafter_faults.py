"""The protocol errors of a drafter on one stream: reported to it, shown, and counted."""

from __future__ import annotations

from google.rpc import status_pb2

from draftwire.v1.drafter_service_pb2 import DraftRequest, SequenceError
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.proposal_pb2 import Proposal
from draftwire_core.pool.drafter.drafter_stream import DrafterStream
from draftwire_core.pool.drafter.pooled_drafter import PooledDrafter
from draftwire_core.pool.standing.circuit_breaker import CircuitBreaker
from draftwire_core.runtime.errors import ServiceError, not_found
from draftwire_core.runtime.process.logs import get_logger

log = get_logger(__name__)


class TooManyFaults(Exception):
    """Raised when the drafter has broken the protocol so often that it is suspended."""


class DrafterFaults:
    """Reports protocol errors. Used in the event loop only."""

    def __init__(self, drafter: PooledDrafter, wire: DrafterStream, breaker: CircuitBreaker) -> None:
        """wire: the stream, which ends after too many errors. breaker: counts those of the drafter's address."""
        self._drafter = drafter
        self._wire = wire
        self._breaker = breaker
        self._has_refused = False

    def refuse_unknown(self, proposal: Proposal) -> None:
        """Refuses a proposal for an opening that never existed; one for an opening that has ended is merely late."""
        error = not_found(
            ErrorReason.ERROR_REASON_UNKNOWN_SEQUENCE,
            f"sequence_id: {proposal.sequence_id} was never opened with epoch {proposal.epoch}",
        )
        if not self._has_refused:  # a drafter can send any number of these
            self._has_refused = True
            log.warning(
                "proposal refused", drafter=self._drafter.name, sequence_id=proposal.sequence_id, reason=error.message
            )
        self.send(proposal.sequence_id, proposal.epoch, error)

    def send(self, sequence_id: int, epoch: int, error: ServiceError) -> None:
        """Reports an error that concerns one opening to the drafter, and counts it."""
        status = error.to_status()
        self._wire.send(DraftRequest(sequence_error=SequenceError(sequence_id=sequence_id, epoch=epoch, status=status)))
        self.count(status)

    def count(self, status: status_pb2.Status) -> None:
        """Shows a protocol error, and ends the conversation after too many."""
        self._drafter.last_error = status
        if self._breaker.count():
            self._wire.end(TooManyFaults(status.message))
