"""What is open with a drafter on one stream, and what the two sides say about it."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Iterable
from typing import Protocol

import grpc
from google.rpc import status_pb2

from drafter_pool.drafter import draft_messages
from drafter_pool.drafter.clocks import DrafterClocks
from drafter_pool.drafter.draft_messages import Dropped
from drafter_pool.drafter.flood_limit import DrafterAllowance
from drafter_pool.drafter.opening import DrafterOpening
from drafter_pool.drafter.pause_policy import DrafterCredit
from drafter_pool.drafter.proposal_sink import SequenceProposal
from drafter_pool.drafter.speculated_request import SpeculatedRequest
from draftwire.v1.drafter_service_pb2 import (
    CloseSequences,
    DraftRequest,
    DraftResponse,
    Ping,
    SequenceError,
    SequenceOpened,
)
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.proposal_pb2 import Proposal as ProposalMessage
from draftwire.v1.proposal_pb2 import ProposalBatch
from draftwire.v1.verdict_pb2 import Verdict, VerdictBatch
from service_runtime.errors import ServiceError, not_found
from service_runtime.process.logs import get_logger
from service_runtime.rpc.handshake import CAPABILITY_HIDDEN_STATES, CAPABILITY_PING, shown
from service_runtime.rpc.message_stream import MessageStream, StreamBroken
from service_runtime.rpc.stream_writer import OutboxFull, StreamWriter
from speculative_engine.tree.proposal import ProposalError

log = get_logger(__name__)

DraftStream = MessageStream[DraftRequest, DraftResponse]

_MAX_QUEUED = 4096
_PING_SECONDS = 1.0
_SILENT_PINGS = 3
"""So many pings after the last sign of life, a drafter is lost. Counted in pings: time in which this process itself
stood still does not count."""
_MESSAGE_SECONDS = 100e-6
"""Processor time that the transport takes to hand a message over, in the event loop and in its own threads."""
_LONGEST_READING = 0.01
"""Processor time beyond which reading a message was held up by something else, as a collection of garbage."""
_BYTE_SECONDS = 100e-9
"""The same for decoding a message, for each of its bytes."""


class Listener(Protocol):
    """Who is told what the drafter says."""

    def took_step(self, seconds: float, seen: float) -> None:
        """The drafter made a drafting step, as it says in so many seconds; seen: as many as it took to answer, or to go
        on, for all that this side can tell."""

    def was_read(self, seconds: float) -> None:
        """A message was read, whatever came of it, in so many seconds of processor time."""

    def came_late(self, nodes: int) -> None:
        """Nodes came for an opening that has ended."""

    def answered(self, seconds: float) -> None:
        """A ping was answered, so long after it was sent."""

    def proposed(self, proposals: list[SequenceProposal]) -> None:
        """A message of proposals came, for sequences that are open."""

    def dropped(self, sequence_id: int, status: status_pb2.Status, why: Dropped) -> None:
        """The drafter gave a sequence up."""

    def broke_protocol(self, status: status_pb2.Status) -> None:
        """The drafter was told that it broke the protocol."""

    def replaced(self) -> None:
        """New streams to the drafter get another model."""


class DrafterConversation:
    """One stream after its handshakes. Used in the event loop only."""

    def __init__(
        self,
        stream: DraftStream,
        peer: PeerInfo,
        drafter: str,
        listener: Listener,
        last_epoch: int,
        clocks: DrafterClocks,
    ):
        """drafter: its name, for the log. last_epoch: the last opening's number on earlier streams."""
        self.peer = peer
        self.epoch = last_epoch
        """Number of the last opening."""
        self._stream = stream
        self._drafter = drafter
        self._listener = listener
        self._writer: StreamWriter[DraftRequest] = StreamWriter(stream, _MAX_QUEUED)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._open: dict[int, DrafterOpening] = {}
        self._silent_pings = 0
        self._clocks = clocks
        self._proposed_at = clocks.now()
        """Time of the last proposal for an opening."""
        self._pinged: tuple[int, float] = (0, 0.0)
        """The last ping's number, and when it was sent."""
        self._has_refused = False
        self._allowance = DrafterAllowance(clocks.now)

    @property
    def writable(self) -> bool:
        """Whether messages still reach the drafter."""
        return not self._writer.closed

    @property
    def sequence_ids(self) -> list[int]:
        """What is open."""
        return list(self._open)

    @property
    def sequences(self) -> int:
        """Number of open sequences."""
        return len(self._open)

    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open."""
        return sequence_id in self._open

    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """Of an open sequence: whether its drafter has caught up, as soon as that is known."""
        return self._open[sequence_id].ready

    async def run(self) -> None:
        """Talk until the drafter ends the stream, after `close_stream` or by itself.

        Raises StreamBroken, OutboxFull when the drafter does not read, ServiceError when it says what it may not, and
        what `end` was given.
        """
        reading = asyncio.create_task(self._read(), name=f"read from {self._drafter}")
        writing = asyncio.create_task(self._writer.run(), name=f"write to {self._drafter}")
        parts: set[asyncio.Future[None]] = {reading, writing, self._ended}
        if CAPABILITY_PING in self.peer.capabilities:
            parts.add(asyncio.create_task(self._watch(), name=f"watch over {self._drafter}"))
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if reading not in done:
                for part in done:
                    part.result()
                await reading  # released: the drafter answers by ending its side
            reading.result()
        finally:
            for part in parts:
                part.cancel()
            await asyncio.wait(parts)
            for part in parts:
                if not part.cancelled():
                    part.exception()  # seen: whichever came first is raised, the others follow from it

    def end(self, why: Exception) -> None:
        """End the conversation for a reason, unless it has one already."""
        if not self._ended.done():
            self._ended.set_exception(why)

    def close_stream(self) -> None:
        """Say nothing more, and let the drafter end its side."""
        self._writer.close()

    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """Open a sequence with the tokens it has; `opened` tells when the drafter has caught up."""
        self.forget(request.sequence_id)
        self.epoch += 1
        request_id = request.order.request_id
        limit = self.peer.limits.max_tree_nodes
        credit = min(max_tree_nodes, limit) if limit else max_tree_nodes
        self._open[request.sequence_id] = DrafterOpening(self.epoch, request_id, credit)
        self._open[request.sequence_id].tell(len(request.tokens), self._clocks.now())
        self._allowance.opened(credit)
        for message in draft_messages.openings(request, self.epoch, credit):
            self._send(message)
        log.debug(
            "sequence opened",
            drafter=self._drafter,
            sequence_id=request.sequence_id,
            epoch=self.epoch,
            request_id=request_id,
            committed_length=len(request.tokens),
        )

    def send_verdicts(self, verdicts: Iterable[Verdict], credit: DrafterCredit) -> None:
        """Tell what a step committed, for the sequences among them that are open here; or, once the drafter has rested,
        what all did since it began to, joined."""
        drafted_for = 0
        for verdict in verdicts:
            opening = self._open.get(verdict.sequence_id)
            if opening is not None:
                self._hold(opening, verdict)
                drafted_for += opening.ready.done()
        if drafted_for:
            credit.stepped(drafted_for)
        if not credit.rests:
            batch = VerdictBatch()
            now = self._clocks.now()
            allowed = []
            for opening in self._open.values():
                if opening.held is not None:
                    batch.verdicts.append(opening.held)
                    allowed.append(opening.max_tree_nodes)
                    self._allowance.told(opening.max_tree_nodes)
                    opening.tell(opening.held.committed_length, now)
                    opening.held = None
            if allowed:
                if credit.max_tree_nodes < min(allowed):
                    batch.max_tree_nodes = credit.max_tree_nodes
                self._send(DraftRequest(verdicts=batch))

    def _hold(self, opening: DrafterOpening, verdict: Verdict) -> None:
        held = opening.held
        if held is None:
            held = opening.held = Verdict(sequence_id=verdict.sequence_id, epoch=opening.epoch)
        held.committed_length = verdict.committed_length
        held.token_ids.extend(verdict.token_ids)
        held.accepted += verdict.accepted
        if verdict.HasField("hidden_state") and CAPABILITY_HIDDEN_STATES in self.peer.capabilities:
            held.hidden_state.CopyFrom(verdict.hidden_state)

    def close(self, sequence_id: int) -> None:
        """Close a sequence; does nothing if it is not open."""
        opening = self._open.get(sequence_id)
        if opening is not None:
            self.forget(sequence_id)
            self._send(DraftRequest(close=CloseSequences(sequence_ids=[sequence_id])))
            log.debug("sequence closed", drafter=self._drafter, sequence_id=sequence_id, request_id=opening.request_id)

    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """Tell the drafter that its proposal was refused, and close the sequence here; False if that opening has
        ended already."""
        opening = self._open.get(sequence_id)
        if opening is None or opening.epoch != epoch:
            return False
        self.forget(sequence_id)
        log.warning(
            "proposal refused",
            drafter=self._drafter,
            sequence_id=sequence_id,
            request_id=opening.request_id,
            reason=str(error),
        )
        self._tell_fault(sequence_id, epoch, draft_messages.proposal_error(error))
        return True

    def forget(self, sequence_id: int) -> bool:
        """A sequence is open no more; whether it was."""
        opening = self._open.pop(sequence_id, None)
        if opening is None:
            return False
        self._allowance.closed(opening.max_tree_nodes)
        if not opening.ready.done():
            opening.ready.set_result(False)
        return True

    async def _watch(self) -> None:
        """Ask for signs of life. Raises StreamBroken when they stay out."""
        for number in itertools.count(1):
            self._pinged = number, self._clocks.now()
            self._send(DraftRequest(ping=Ping(number=number)))
            self._allowance.asked()
            await asyncio.sleep(_PING_SECONDS)
            self._silent_pings += 1
            if self._silent_pings >= _SILENT_PINGS:
                seconds = _SILENT_PINGS * _PING_SECONDS
                raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"no sign of life for {seconds:g} seconds")

    async def _read(self) -> None:
        async for message in self._stream:
            decoded = self._stream.decoded()
            decoding = min(decoded.seconds, _LONGEST_READING + decoded.size * _BYTE_SECONDS)
            began = self._clocks.spent()
            try:
                self._allowance.spend(message, decoded.size)
                self._take(message)
            finally:
                seconds = min(self._clocks.spent() - began, _LONGEST_READING)
                self._listener.was_read(_MESSAGE_SECONDS + decoding + seconds)

    def _take(self, message: DraftResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "proposals":
            self._take_proposals(message.proposals)
        elif kind == "opened":
            self._take_opened(message.opened)
        elif kind == "sequence_error":
            self._take_error(message.sequence_error)
        elif kind == "pong":
            self._silent_pings = 0
            number, sent = self._pinged
            if message.pong.number == number:
                self._listener.answered(self._clocks.now() - sent)
        elif kind == "replaced":
            self._listener.replaced()
        elif kind == "hello":
            raise draft_messages.handshake_fault("a second handshake came")
        else:  # a newer drafter's message of a kind that is not known here
            log.debug("message passed over", drafter=self._drafter, kind=kind)

    def _take_proposals(self, batch: ProposalBatch) -> None:
        proposals = []
        told_at = -math.inf
        for message in batch.proposals:
            opening = self._open.get(message.sequence_id)
            if message.epoch > self.epoch:
                self._refuse_unknown(message)
            elif opening is None or opening.epoch != message.epoch:
                self._listener.came_late(len(message.token_ids))
            else:
                told_at = max(told_at, opening.told_at(message.committed_length))
                proposal = draft_messages.proposal(message)
                proposals.append(SequenceProposal(message.sequence_id, message.epoch, proposal))
        seen = 0.0
        if proposals:
            # The drafter has been at it since it was told of what it builds on, or since it proposed last.
            now, since = self._clocks.now(), max(told_at, self._proposed_at)
            seen, self._proposed_at = now - since, now
        self._listener.took_step(batch.step_seconds, seen)
        if proposals:
            self._listener.proposed(proposals)

    def _refuse_unknown(self, message: ProposalMessage) -> None:
        """A proposal for an opening that never was; one for an opening that has ended is merely late."""
        error = not_found(
            ErrorReason.ERROR_REASON_UNKNOWN_SEQUENCE,
            f"sequence_id: {message.sequence_id} was never opened as epoch {message.epoch}",
        )
        if not self._has_refused:  # a drafter can send any number of these
            self._has_refused = True
            log.warning(
                "proposal refused", drafter=self._drafter, sequence_id=message.sequence_id, reason=error.message
            )
        self._tell_fault(message.sequence_id, message.epoch, error)

    def _take_opened(self, opened: SequenceOpened) -> None:
        opening = self._open.get(opened.sequence_id)
        if opening is not None and opening.epoch == opened.epoch and not opening.ready.done():
            opening.ready.set_result(True)

    def _take_error(self, error: SequenceError) -> None:
        opening = self._open.get(error.sequence_id)
        if opening is None or opening.epoch != error.epoch:
            return
        reason = StreamBroken(error.status).reason_name
        log.warning(
            "drafter dropped a sequence",
            drafter=self._drafter,
            sequence_id=error.sequence_id,
            request_id=opening.request_id,
            reason=shown(reason or ""),
        )
        self.forget(error.sequence_id)
        why = Dropped.REFUSED
        if reason in ("OUT_OF_SYNC", "UNKNOWN_SEQUENCE"):
            why = Dropped.OUT_OF_STEP
        elif reason == "AT_CAPACITY":
            why = Dropped.FULL
        self._listener.dropped(error.sequence_id, error.status, why)

    def _tell_fault(self, sequence_id: int, epoch: int, error: ServiceError) -> None:
        status = error.to_status()
        self._send(DraftRequest(sequence_error=SequenceError(sequence_id=sequence_id, epoch=epoch, status=status)))
        self._listener.broke_protocol(status)

    def _send(self, message: DraftRequest) -> None:
        if self._writer.closed:
            return  # the conversation is over; what was open is being dropped
        try:
            self._writer.send(message)
        except OutboxFull as error:
            # The drafter does not read. The conversation ends, and a new one begins.
            self.end(OutboxFull(f"the drafter does not read: {error}"))
