"""The verifier's side of the conversation with one drafter, over whatever stream carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
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
    OpenSequence,
    SequenceError,
    SequenceOpened,
)
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.proposal_pb2 import Proposal as ProposalMessage
from draftwire.v1.proposal_pb2 import ProposalBatch
from draftwire.v1.sampling_pb2 import SamplingParams
from draftwire.v1.verdict_pb2 import Verdict, VerdictBatch
from service_runtime.backoff import Backoff
from service_runtime.engine_thread import TooManyCommands
from service_runtime.errors import ServiceError, failed_precondition, not_found
from service_runtime.handshake import check_peer
from service_runtime.logs import get_logger
from service_runtime.message_stream import MessageStream, StreamBroken
from service_runtime.stream_writer import OutboxFull, StreamWriter
from speculative_engine.proposal import Proposal, ProposalError, ProposalFault
from verifier_service.running_request import RunningRequest

log = get_logger(__name__)

DraftStream = MessageStream[DraftRequest, DraftResponse]
Connect = Callable[[], AbstractAsyncContextManager[DraftStream]]

_HANDSHAKE_SECONDS = 5.0
_CHUNK_TOKENS = 16384
_MAX_QUEUED = 4096
_STEADY_SECONDS = 1.0
"""A conversation that lasted this long was no flicker: the next one is tried at once."""
_SMOOTHING = 0.1
_LONGEST_STEP_SECONDS = 60.0


class LinkOwner(Protocol):
    """Who is told what happens on a link."""

    def link_changed(self, link: DrafterLink) -> None:
        """The link's state changed."""

    def link_ready(self, link: DrafterLink) -> None:
        """The drafter drafts from now on; it has no sequence yet."""

    def link_proposed(self, link: DrafterLink, proposals: list[tuple[int, Proposal]]) -> None:
        """A message of proposals came, for sequences that are open on the link."""

    def link_dropped(self, link: DrafterLink, sequence_ids: list[int], reopen: bool) -> None:
        """The drafter drafts no more for these; `reopen` says whether it is worth opening them there again."""


@dataclass(slots=True)
class LinkStats:
    """What a drafter did since it was attached."""

    draft_tokens: int = 0
    accepted_tokens: int = 0
    stale_nodes: int = 0
    step_seconds: float = 0.0
    """Smoothed time of one of its drafting steps."""

    def count_step(self, seconds: float) -> None:
        """Take in the time of a step as the drafter tells it; what cannot be true is passed over."""
        if not 0 <= seconds <= _LONGEST_STEP_SECONDS:  # NaN neither
            return
        self.step_seconds += _SMOOTHING * (seconds - self.step_seconds) if self.step_seconds else seconds


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
        self.announced = False
        self.state = DrafterState.DRAFTER_STATE_CONNECTING
        self.peer: PeerInfo | None = None
        self.stats = LinkStats()
        self.last_error: status_pb2.Status | None = None
        self.contact: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done with the first handshake; holds the StreamBroken or ServiceError if that failed."""
        self._connect = connect
        self._identity = identity
        self._owner = owner
        self._writer: StreamWriter[DraftRequest] | None = None
        self._overrun: asyncio.Future[None] | None = None
        self._open: dict[int, _Opening] = {}
        self._epoch = 0
        self._released = False

    @property
    def sequences(self) -> int:
        """Number of open sequences."""
        return len(self._open)

    @property
    def ready(self) -> bool:
        """Whether new sequences may be opened."""
        writable = self._writer is not None and not self._writer.closed
        return self.state == DrafterState.DRAFTER_STATE_READY and writable

    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open."""
        return sequence_id in self._open

    async def run(self) -> None:
        """Connect and converse, again and again with growing pauses, until released."""
        backoff = Backoff(0.1, 5.0)
        while not self._released:
            try:
                async with self._connect() as stream:
                    self.peer = await self._shake_hands(stream)
                    await self._converse(stream, self.peer, backoff)
            except (StreamBroken, ServiceError, TimeoutError, OutboxFull, TooManyCommands) as error:
                self._note(error)
            finally:
                self._disconnected()
            if not self._released:
                self._set_state(DrafterState.DRAFTER_STATE_UNREACHABLE)
                await backoff.wait()

    def drain(self) -> None:
        """Open no more sequences."""
        self._set_state(DrafterState.DRAFTER_STATE_DRAINING)

    def release(self) -> bool:
        """End the conversation. True if `run` returns by itself once the drafter has answered, False if there is no
        conversation to end and `run` is to be cancelled."""
        self._released = True
        if self._writer is not None:
            self._writer.close()
        return self._writer is not None

    def open(self, request: RunningRequest, max_tree_nodes: int) -> asyncio.Future[bool]:
        """Open a sequence with the tokens it has; the future tells whether the drafter caught up."""
        assert self.peer is not None, "only ready links open sequences"
        self._forget(request.sequence_id)
        self._epoch += 1
        opening = _Opening(self._epoch)
        self._open[request.sequence_id] = opening
        sampling = request.order.sampling
        limit = self.peer.limits.max_tree_nodes
        for offset in range(0, len(request.tokens), _CHUNK_TOKENS):
            self._send(
                DraftRequest(
                    open=OpenSequence(
                        sequence_id=request.sequence_id,
                        epoch=opening.epoch,
                        sampling=SamplingParams(
                            temperature=sampling.temperature,
                            top_k=sampling.top_k,
                            top_p=sampling.top_p,
                            min_p=sampling.min_p,
                            seed=sampling.seed,
                        ),
                        committed_length=len(request.tokens),
                        offset=offset,
                        token_ids=request.tokens[offset : offset + _CHUNK_TOKENS],
                        max_tree_nodes=min(max_tree_nodes, limit) if limit else max_tree_nodes,
                        max_length=request.order.max_length,
                    )
                )
            )
        return opening.ready

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
        status = proposal_error(error).to_status()
        self.last_error = status
        log.warning("proposal refused", drafter=self.name, sequence=sequence_id, reason=str(error))
        self._send(
            DraftRequest(sequence_error=SequenceError(sequence_id=sequence_id, epoch=opening.epoch, status=status))
        )

    async def _shake_hands(self, stream: DraftStream) -> PeerInfo:
        async with asyncio.timeout(_HANDSHAKE_SECONDS):
            await stream.write(DraftRequest(hello=self._identity))
            first = await stream.read()
        if first is None or first.WhichOneof("message") != "hello":
            raise failed_precondition(
                ErrorReason.ERROR_REASON_HANDSHAKE_EXPECTED, f"{self.address} did not begin with its handshake"
            )
        check_peer(self._identity, first.hello)
        return first.hello

    async def _converse(self, stream: DraftStream, peer: PeerInfo, backoff: Backoff) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        writer: StreamWriter[DraftRequest] = StreamWriter(stream, _MAX_QUEUED)
        self._writer = writer
        self._overrun = loop.create_future()
        self.last_error = None
        self._set_state(DrafterState.DRAFTER_STATE_READY)
        if not self.contact.done():
            self.contact.set_result(None)
        log.info("drafter ready", drafter=self.name, address=self.address, model=peer.model.model_id)
        self._owner.link_ready(self)
        reading = asyncio.create_task(self._read(stream), name=f"read from {self.name}")
        writing = asyncio.create_task(writer.run(), name=f"write to {self.name}")
        parts: set[asyncio.Future[None]] = {reading, writing, self._overrun}
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
        elif kind == "hello":
            raise failed_precondition(
                ErrorReason.ERROR_REASON_HANDSHAKE_EXPECTED, f"{self.address} sent a second handshake"
            )
        else:  # a newer drafter's message of a kind that is not known here
            log.debug("message passed over", drafter=self.name, kind=kind)

    def _take_proposals(self, batch: ProposalBatch) -> None:
        self.stats.count_step(batch.step_seconds)
        proposals = []
        for message in batch.proposals:
            opening = self._open.get(message.sequence_id)
            if message.epoch > self._epoch:
                self._refuse_unknown(message)
                continue
            if opening is None or opening.epoch != message.epoch:
                self.stats.stale_nodes += len(message.token_ids)
                continue
            proposals.append(
                (
                    message.sequence_id,
                    Proposal(
                        committed_length=message.committed_length,
                        first_node_id=message.first_node_id,
                        token_ids=list(message.token_ids),
                        parent_ids=list(message.parent_ids),
                        log_probs=list(message.log_probs),
                    ),
                )
            )
        if proposals:
            self._owner.link_proposed(self, proposals)

    def _refuse_unknown(self, message: ProposalMessage) -> None:
        """A proposal for an opening that never was; one for an opening that has ended is merely late."""
        error = not_found(
            ErrorReason.ERROR_REASON_UNKNOWN_SEQUENCE,
            f"sequence_id: {message.sequence_id} was never opened as epoch {message.epoch}",
        )
        status = error.to_status()
        if self.last_error is None:  # a drafter can send any number of these
            log.warning("proposal refused", drafter=self.name, sequence=message.sequence_id, reason=error.message)
        self.last_error = status
        self._send(
            DraftRequest(
                sequence_error=SequenceError(sequence_id=message.sequence_id, epoch=message.epoch, status=status)
            )
        )

    def _take_opened(self, opened: SequenceOpened) -> None:
        opening = self._open.get(opened.sequence_id)
        if opening is not None and opening.epoch == opened.epoch and not opening.ready.done():
            opening.ready.set_result(True)

    def _take_error(self, error: SequenceError) -> None:
        opening = self._open.get(error.sequence_id)
        if opening is None or opening.epoch != error.epoch:
            return
        self.last_error = error.status
        reason = StreamBroken(error.status).reason_name
        log.warning("drafter dropped a sequence", drafter=self.name, sequence=error.sequence_id, reason=reason)
        self._forget(error.sequence_id)
        self._owner.link_dropped(self, [error.sequence_id], reopen=reason in ("OUT_OF_SYNC", "UNKNOWN_SEQUENCE"))

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
            if self._overrun is not None and not self._overrun.done():
                self._overrun.set_exception(OutboxFull(f"the drafter does not read: {error}"))

    def _note(self, error: Exception) -> None:
        """Keep a fault for those who ask, and log it when it is news."""
        if isinstance(error, StreamBroken):
            status = error.status
        elif isinstance(error, ServiceError):
            status = error.to_status()
        else:
            text = str(error) or f"no handshake within {_HANDSHAKE_SECONDS} s"
            status = StreamBroken.of(grpc.StatusCode.UNAVAILABLE, text).status
        if self.state != DrafterState.DRAFTER_STATE_UNREACHABLE:
            log.warning("drafter lost", drafter=self.name, address=self.address, reason=status.message)
        self.last_error = status
        if not self.contact.done():
            self.contact.set_exception(error if isinstance(error, ServiceError) else StreamBroken(status))
            self.contact.exception()  # seen, also when nobody waits for it

    def _disconnected(self) -> None:
        self._writer = self._overrun = None
        lost = list(self._open)
        for sequence_id in lost:
            self._forget(sequence_id)
        if lost:
            self._owner.link_dropped(self, lost, reopen=False)

    def _set_state(self, state: DrafterState) -> None:
        draining = self.state == DrafterState.DRAFTER_STATE_DRAINING
        if state != self.state and not draining:
            self.state = state
            self._owner.link_changed(self)


def proposal_error(error: ProposalError) -> ServiceError:
    """What a drafter is told whose proposal was refused."""
    if error.fault is ProposalFault.CREDIT_EXCEEDED:
        return ServiceError(grpc.StatusCode.RESOURCE_EXHAUSTED, ErrorReason.ERROR_REASON_CREDIT_EXCEEDED, str(error))
    return ServiceError(grpc.StatusCode.INVALID_ARGUMENT, ErrorReason.ERROR_REASON_MALFORMED_PROPOSAL, str(error))
