"""The verifier's side of the conversation with one drafter, over whatever stream carries it."""

from __future__ import annotations

import asyncio
import enum
import itertools
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

import grpc
from google.rpc import status_pb2

from draftwire.v1.drafter_pool_service_pb2 import DrafterState
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
from service_runtime.backoff import Backoff
from service_runtime.engine_thread import TooManyCommands
from service_runtime.errors import ServiceError, failed_precondition, not_found
from service_runtime.handshake import CAPABILITY_PING, check_peer
from service_runtime.logs import get_logger
from service_runtime.message_stream import MessageStream, StreamBroken
from service_runtime.stream_writer import OutboxFull, StreamWriter
from speculative_engine.proposal import Proposal, ProposalError
from verifier_service import draft_messages
from verifier_service.circuit_breaker import CircuitBreaker
from verifier_service.draft_source import new_source
from verifier_service.link_stats import DraftingSpeed, LinkStats
from verifier_service.running_request import RunningRequest

log = get_logger(__name__)

DraftStream = MessageStream[DraftRequest, DraftResponse]
Connect = Callable[[], AbstractAsyncContextManager[DraftStream]]

_HANDSHAKE_SECONDS = 5.0
_MAX_HELLO_BYTES = 65536
_MAX_QUEUED = 4096
_STEADY_SECONDS = 1.0
"""A conversation that lasted this long was no flicker: the next one is tried at once."""
_PING_SECONDS = 1.0
_SILENT_PINGS = 3
"""So many pings after the last sign of life, a drafter is lost. Counted in pings: time in which this process itself
stood still does not count."""
_RETRY_SECONDS = 1.0
"""When a full drafter that names no time is asked again."""
_LONGEST_RETRY_SECONDS = 60.0


class Dropped(enum.Enum):
    """Why a drafter drafts no more for a sequence."""

    LOST = "the stream ended"
    OUT_OF_STEP = "it fell out of step, and may be asked again at once"
    FULL = "it has no room, and may be asked again when it said"
    REFUSED = "it cannot, or may not, draft for the sequence"


class LinkOwner(Protocol):
    """Who is told what happens on a link."""

    def link_changed(self, link: DrafterLink) -> None:
        """The link's state changed."""

    def link_ready(self, link: DrafterLink) -> None:
        """The drafter drafts from now on; it has no sequence yet."""

    def link_renewed(self, link: DrafterLink, old_source: str) -> None:
        """Another model answers than before the connection was lost; what was learned of the old one is void."""

    def link_replaced(self, link: DrafterLink) -> None:
        """New streams to the address get another model; this one goes on for a while."""

    def link_proposed(self, link: DrafterLink, proposals: list[tuple[int, Proposal]]) -> None:
        """A message of proposals came, for sequences that are open on the link."""

    def link_dropped(self, link: DrafterLink, sequence_ids: list[int], why: Dropped) -> None:
        """The drafter drafts no more for these."""


class TooManyFaults(Exception):
    """The drafter broke the protocol so often that it gets a pause."""


@dataclass(slots=True)
class _Opening:
    epoch: int
    ready: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """True once the drafter has caught up, False when it will not."""


class DrafterLink:
    """Keeps the connection to one drafter, and what is open on it. Used in the event loop only."""

    def __init__(self, name: str, address: str, connect: Connect, identity: PeerInfo, owner: LinkOwner):
        self.name = name
        self.address = address
        self.source = new_source(name)
        """What the engine calls it: another one for each model that has answered at the address."""
        self.labels: Mapping[str, str] = {}
        self.announced = False
        self.given = False
        """Attached by hand or by a setting: it stays when its heartbeats stop."""
        self.attached_at = time.time()
        self.peer: PeerInfo | None = None
        self.stats = LinkStats()
        self.speed = DraftingSpeed()
        self.last_error: status_pb2.Status | None = None
        self.contact: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the first handshake; holds the StreamBroken or ServiceError if that failed."""
        self._connect = connect
        self._identity = identity
        self._owner = owner
        self._state = DrafterState.DRAFTER_STATE_CONNECTING
        self._draining = False
        self._writer: StreamWriter[DraftRequest] | None = None
        self._fault: asyncio.Future[None] | None = None
        """Ends the conversation with the exception it is given."""
        self._breaker = CircuitBreaker()
        self._silent_pings = 0
        self._full_until = 0.0
        self._retry_seconds = 0.0
        """What the drafter asked for when the last conversation ended."""
        self._open: dict[int, _Opening] = {}
        self._epoch = 0
        self._released = False

    @property
    def state(self) -> DrafterState:
        """Where the drafter stands in the pool."""
        return DrafterState.DRAFTER_STATE_DRAINING if self._draining else self._state

    @property
    def sequences(self) -> int:
        """Number of open sequences."""
        return len(self._open)

    @property
    def ready(self) -> bool:
        """Whether the drafter drafts, and is to go on with it."""
        writable = self._writer is not None and not self._writer.closed
        return self.state == DrafterState.DRAFTER_STATE_READY and writable

    @property
    def has_room(self) -> bool:
        """Whether another sequence may be opened, by the drafter's own limit and by what it said when it was full."""
        most = self.peer.limits.max_sequences if self.peer is not None else 0
        return (not most or len(self._open) < most) and self.full_seconds == 0

    @property
    def full_seconds(self) -> float:
        """Seconds for which the drafter wants no more sequences."""
        return max(0.0, self._full_until - asyncio.get_running_loop().time())

    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open."""
        return sequence_id in self._open

    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """Whether an open sequence's drafter has caught up: as soon as that is known. Must not be cancelled."""
        return self._open[sequence_id].ready

    def inherit(self, predecessor: DrafterLink) -> None:
        """Take another link's place in the pool: all but what depends on the model."""
        self.labels, self.stats = predecessor.labels, predecessor.stats
        self.announced, self.given = predecessor.announced, predecessor.given
        self.attached_at = predecessor.attached_at

    async def run(self) -> None:
        """Connect and converse, again and again with growing pauses, until released."""
        backoff = Backoff(0.1, 5.0)
        while not self._released:
            try:
                async with self._connect() as stream:
                    self._meet(await self._shake_hands(stream))
                    await self._converse(stream, backoff)
            except (StreamBroken, ServiceError, TimeoutError, OutboxFull, TooManyCommands, TooManyFaults) as error:
                self._note(error)
            finally:
                self._disconnected()
            if self._released:
                return
            if self._breaker.tripped:
                pause = self._breaker.take_pause()
                log.warning("drafter suspended", drafter=self.name, address=self.address, seconds=pause)
                self._set_state(DrafterState.DRAFTER_STATE_SUSPENDED)
                await asyncio.sleep(pause)
            else:
                self._set_state(DrafterState.DRAFTER_STATE_UNREACHABLE)
                await asyncio.sleep(max(backoff.next_delay(), self._retry_seconds))

    def drain(self) -> None:
        """Open no more sequences."""
        self._set_draining(True)

    def resume(self) -> None:
        """Open sequences again."""
        self._set_draining(False)

    def release(self) -> bool:
        """End the conversation. True if `run` returns by itself once the drafter has answered, False if there is no
        conversation to end and `run` is to be cancelled."""
        self._released = True
        if self._writer is not None:
            self._writer.close()
        return self._writer is not None

    def show_error(self, error: StreamBroken | ServiceError) -> None:
        """Keep a fault for those who ask."""
        status = error.status if isinstance(error, StreamBroken) else error.to_status()
        self.last_error = draft_messages.bounded(status)
        self._owner.link_changed(self)

    def open(self, request: RunningRequest, max_tree_nodes: int) -> None:
        """Open a sequence with the tokens it has; `opened` tells when the drafter has caught up."""
        assert self.peer is not None, "only ready links open sequences"
        self._forget(request.sequence_id)
        self._epoch += 1
        self._open[request.sequence_id] = _Opening(self._epoch)
        self.speed.count_opening()
        limit = self.peer.limits.max_tree_nodes
        credit = min(max_tree_nodes, limit) if limit else max_tree_nodes
        for message in draft_messages.openings(request, self._epoch, credit):
            self._send(message)

    def send_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """Tell what a step committed, for the sequences among them that are open here."""
        batch = VerdictBatch()
        for verdict in verdicts:
            opening = self._open.get(verdict.sequence_id)
            if opening is not None:
                entry = batch.verdicts.add()
                entry.CopyFrom(verdict)
                entry.epoch = opening.epoch
        if batch.verdicts:
            self._send(DraftRequest(verdicts=batch))

    def close(self, sequence_ids: Iterable[int]) -> None:
        """Close sequences; those that are not open are passed over."""
        closed = [sequence_id for sequence_id in sequence_ids if self._forget(sequence_id)]
        if closed:
            self._send(DraftRequest(close=CloseSequences(sequence_ids=closed)))

    def refuse(self, sequence_id: int, error: ProposalError) -> None:
        """Tell the drafter that its proposal was refused, and close the sequence here."""
        opening = self._open.get(sequence_id)
        if opening is None:
            return
        self._forget(sequence_id)
        log.warning("proposal refused", drafter=self.name, sequence=sequence_id, reason=str(error))
        self._tell_fault(sequence_id, opening.epoch, draft_messages.proposal_error(error))

    async def _shake_hands(self, stream: DraftStream) -> PeerInfo:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await stream.write(DraftRequest(hello=self._identity))
            first = await stream.read()
        if first is None:
            raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"{self.address} ended the stream before its handshake")
        if first.WhichOneof("message") != "hello":
            raise self._handshake_fault("did not begin with its handshake")
        if first.hello.ByteSize() > _MAX_HELLO_BYTES:
            raise self._handshake_fault(f"sent a handshake of {first.hello.ByteSize()} bytes")
        check_peer(self._identity, first.hello)
        return first.hello

    def _handshake_fault(self, what: str) -> ServiceError:
        return failed_precondition(ErrorReason.ERROR_REASON_HANDSHAKE_EXPECTED, f"{self.address} {what}")

    def _meet(self, peer: PeerInfo) -> None:
        """Know the drafter by what it says of itself now."""
        known, self.peer = self.peer, peer
        if known is not None and known.model != peer.model:
            log.info("another model answers", drafter=self.name, address=self.address, model=peer.model.model_id)
            old_source, self.source = self.source, new_source(self.name)
            self.speed = DraftingSpeed()
            self._owner.link_renewed(self, old_source)

    async def _converse(self, stream: DraftStream, backoff: Backoff) -> None:
        assert self.peer is not None, "known since the handshake"
        loop = asyncio.get_running_loop()
        started = loop.time()
        writer: StreamWriter[DraftRequest] = StreamWriter(stream, _MAX_QUEUED)
        self._writer = writer
        self._fault = loop.create_future()
        self._full_until = self._retry_seconds = 0.0
        self.last_error = None
        self._set_state(DrafterState.DRAFTER_STATE_READY)
        if not self.contact.done():
            self.contact.set_result(None)
        log.info("drafter ready", drafter=self.name, address=self.address, model=self.peer.model.model_id)
        self._owner.link_ready(self)
        reading = asyncio.create_task(self._read(stream), name=f"read from {self.name}")
        writing = asyncio.create_task(writer.run(), name=f"write to {self.name}")
        parts: set[asyncio.Future[None]] = {reading, writing, self._fault}
        if CAPABILITY_PING in self.peer.capabilities:
            parts.add(asyncio.create_task(self._watch(), name=f"watch over {self.name}"))
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
            if loop.time() - started >= _STEADY_SECONDS:
                backoff.reset()
        if not self._released:
            raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"{self.address} ended the stream")

    async def _watch(self) -> None:
        """Ask for signs of life. Raises StreamBroken when they stay out."""
        self._silent_pings = 0
        for number in itertools.count(1):
            self._send(DraftRequest(ping=Ping(number=number)))
            await asyncio.sleep(_PING_SECONDS)
            self._silent_pings += 1
            if self._silent_pings >= _SILENT_PINGS:
                seconds = _SILENT_PINGS * _PING_SECONDS
                raise StreamBroken.of(
                    grpc.StatusCode.UNAVAILABLE, f"{self.address} gave no sign of life for {seconds:g} seconds"
                )

    async def _read(self, stream: DraftStream) -> None:
        async for message in stream:
            self._take(message)

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
        elif kind == "replaced":
            self._owner.link_replaced(self)
        elif kind == "hello":
            raise self._handshake_fault("sent a second handshake")
        else:  # a newer drafter's message of a kind that is not known here
            log.debug("message passed over", drafter=self.name, kind=kind)

    def _take_proposals(self, batch: ProposalBatch) -> None:
        self.stats.count_step(batch.step_seconds)
        self.speed.count_step(batch.step_seconds)
        proposals = []
        for message in batch.proposals:
            opening = self._open.get(message.sequence_id)
            if message.epoch > self._epoch:
                self._refuse_unknown(message)
            elif opening is None or opening.epoch != message.epoch:
                self.stats.stale_nodes += len(message.token_ids)
            else:
                proposals.append((message.sequence_id, draft_messages.proposal(message)))
        if proposals:
            self._owner.link_proposed(self, proposals)

    def _refuse_unknown(self, message: ProposalMessage) -> None:
        """A proposal for an opening that never was; one for an opening that has ended is merely late."""
        error = not_found(
            ErrorReason.ERROR_REASON_UNKNOWN_SEQUENCE,
            f"sequence_id: {message.sequence_id} was never opened as epoch {message.epoch}",
        )
        if self.last_error is None:  # a drafter can send any number of these
            log.warning("proposal refused", drafter=self.name, sequence=message.sequence_id, reason=error.message)
        self._tell_fault(message.sequence_id, message.epoch, error)

    def _take_opened(self, opened: SequenceOpened) -> None:
        opening = self._open.get(opened.sequence_id)
        if opening is not None and opening.epoch == opened.epoch and not opening.ready.done():
            opening.ready.set_result(True)

    def _take_error(self, error: SequenceError) -> None:
        opening = self._open.get(error.sequence_id)
        if opening is None or opening.epoch != error.epoch:
            return
        self.last_error = draft_messages.bounded(error.status)
        broken = StreamBroken(error.status)
        reason = broken.reason_name
        log.warning("drafter dropped a sequence", drafter=self.name, sequence=error.sequence_id, reason=reason)
        self._forget(error.sequence_id)
        why = Dropped.REFUSED
        if reason in ("OUT_OF_SYNC", "UNKNOWN_SEQUENCE"):
            why = Dropped.OUT_OF_STEP
        elif reason == "AT_CAPACITY":
            why = Dropped.FULL
            self._full_until = asyncio.get_running_loop().time() + _retry_seconds(broken)
        self._owner.link_dropped(self, [error.sequence_id], why)

    def _tell_fault(self, sequence_id: int, epoch: int, error: ServiceError) -> None:
        """Tell the drafter what it did wrong, keep it for those who ask, and count it."""
        status = error.to_status()
        self.last_error = status
        self._send(DraftRequest(sequence_error=SequenceError(sequence_id=sequence_id, epoch=epoch, status=status)))
        if self._breaker.count():
            self._end_conversation(TooManyFaults(error.message))

    def _forget(self, sequence_id: int) -> bool:
        opening = self._open.pop(sequence_id, None)
        if opening is not None and not opening.ready.done():
            opening.ready.set_result(False)
        return opening is not None

    def _send(self, message: DraftRequest) -> None:
        if self._writer is None or self._writer.closed:
            return  # the conversation is over; what was open is being dropped
        try:
            self._writer.send(message)
        except OutboxFull as error:
            # The drafter does not read. The conversation ends, and a new one begins.
            self._end_conversation(OutboxFull(f"the drafter does not read: {error}"))

    def _end_conversation(self, why: Exception) -> None:
        if self._fault is not None and not self._fault.done():
            self._fault.set_exception(why)

    def _note(self, error: Exception) -> None:
        """Keep a fault for those who ask, count it if it breaks the protocol, and log it when it is news."""
        if isinstance(error, TooManyFaults):
            return  # each of them was noted
        if not isinstance(error, ServiceError | StreamBroken):
            error = StreamBroken.of(
                grpc.StatusCode.UNAVAILABLE, str(error) or f"no handshake within {_HANDSHAKE_SECONDS} s"
            )
        if isinstance(error, StreamBroken):
            self._retry_seconds = _retry_seconds(error) if error.retry_seconds is not None else 0.0
        if self._state not in (DrafterState.DRAFTER_STATE_UNREACHABLE, DrafterState.DRAFTER_STATE_SUSPENDED):
            log.warning("drafter lost", drafter=self.name, address=self.address, reason=str(error))
        self.show_error(error)
        if _breaks_protocol(error):
            self._breaker.count()
        if not self.contact.done():
            self.contact.set_exception(error)
            self.contact.exception()  # seen, also when nobody waits for it

    def _disconnected(self) -> None:
        self._writer = self._fault = None
        lost = list(self._open)
        for sequence_id in lost:
            self._forget(sequence_id)
        if lost:
            self._owner.link_dropped(self, lost, Dropped.LOST)

    def _set_state(self, state: DrafterState) -> None:
        if state != self._state:
            self._state = state
            self._owner.link_changed(self)

    def _set_draining(self, draining: bool) -> None:
        if draining != self._draining:
            self._draining = draining
            self._owner.link_changed(self)


def _breaks_protocol(error: StreamBroken | ServiceError) -> bool:
    """Whether the end of a conversation is a fault of the drafter's program: a message out of place, or one that
    cannot be read. Models that do not fit are none, nor is a peer that finds fault with this side."""
    if isinstance(error, ServiceError):
        return error.reason == ErrorReason.ERROR_REASON_HANDSHAKE_EXPECTED
    return error.code in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN, grpc.StatusCode.DATA_LOSS)


def _retry_seconds(error: StreamBroken) -> float:
    """When to ask again, within reason."""
    asked = error.retry_seconds
    return _RETRY_SECONDS if asked is None else min(max(asked, 0.1), _LONGEST_RETRY_SECONDS)
