"""The verifier's drafter to one drafter: reaches it again and again, and knows how it does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

import grpc
from google.rpc import status_pb2

from drafter_pool.drafter import draft_messages
from drafter_pool.drafter.clocks import DrafterClocks
from drafter_pool.drafter.conversation import DrafterConversation, DraftStream
from drafter_pool.drafter.draft_messages import Dropped
from drafter_pool.drafter.drafter_stats import LONGEST_STEP_SECONDS, plausible
from drafter_pool.drafter.handshake import shake_hands
from drafter_pool.drafter.pooled_drafter import MemberOwner, PooledDrafter
from drafter_pool.drafter.proposal_sink import SequenceProposal
from drafter_pool.drafter.source import new_source
from drafter_pool.drafter.speculated_request import SpeculatedRequest
from drafter_pool.drafter.standings import REPLACEMENT_SECONDS, DrafterStanding
from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import ModelInfo, PeerInfo
from draftwire.v1.verdict_pb2 import Verdict
from service_runtime.errors import ServiceError
from service_runtime.process.engine_thread import TooManyCommands
from service_runtime.process.logs import get_logger
from service_runtime.rpc.backoff import Backoff
from service_runtime.rpc.handshake import (
    CAPABILITY_DISTRIBUTIONS,
    CAPABILITY_HIDDEN_STATES,
    shown,
)
from service_runtime.rpc.message_stream import StreamBroken
from service_runtime.rpc.stream_writer import OutboxFull
from speculative_engine.tree.proposal import ProposalError

log = get_logger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[DraftStream]]

_STEADY_SECONDS = 1.0
"""A conversation that lasted this long was no flicker: the next one is tried at once."""
_RETRY_SECONDS = 1.0
"""When a full drafter that names no time is asked again."""
_LONGEST_RETRY_SECONDS = 60.0


class LinkOwner(MemberOwner, Protocol):
    """Who is told what happens on a drafter."""

    def drafter_renewed(self, drafter: ServiceDrafter, old_source: str) -> None:
        """Another model answers than before the connection was lost; what was learned of the old one is void."""

    def drafter_replaced(self, drafter: ServiceDrafter, delay: float) -> None:
        """New streams to the address get another model, which is to be followed after so many seconds; this one goes on
        for a while."""

    def drafter_proposed(self, drafter: ServiceDrafter, proposals: list[SequenceProposal]) -> None:
        """A message of proposals came, for sequences that are open on the drafter."""

    def drafter_rests(self, drafter: ServiceDrafter, *, rests: bool) -> None:
        """The drafter is told no verdicts from now on, or is told them again."""

    def drafter_dropped(self, drafter: ServiceDrafter, sequence_ids: list[int], why: Dropped) -> None:
        """The drafter drafts no more for these."""


class TooManyFaults(Exception):
    """The drafter broke the protocol so often that it gets a pause."""


class ServiceDrafter(PooledDrafter):
    """Keeps up the conversation with one drafter service."""

    def __init__(
        self,
        name: str,
        address: str,
        connect: Connect,
        identity: PeerInfo,
        owner: LinkOwner,
        standing: DrafterStanding,
        clocks: DrafterClocks,
    ):
        """standing: of the address; it may have other drafters, under other names or to the model before."""
        super().__init__(name, address, owner)
        self.credit, self.speed = standing.credit, standing.speed
        self.peer: PeerInfo | None = None
        self._connect = connect
        self._identity = identity
        self._owner: LinkOwner = owner
        self._conversation: DrafterConversation | None = None
        self._last_epoch = 0
        self._standing = standing
        self._clocks = clocks
        self._rests = False
        """As the owner was told last; it knows of drafters that have had a sequence."""
        self._full_until = 0.0
        self._retry_seconds = 0.0
        """What the drafter asked for when the last conversation ended."""
        self._released = False

    @property
    def draws(self) -> bool:
        """See PooledDrafter."""
        return self.trusted and self.peer is not None and CAPABILITY_DISTRIBUTIONS in self.peer.capabilities

    @property
    def model(self) -> ModelInfo | None:
        """See PooledDrafter."""
        return self.peer.model if self.peer is not None else None

    @property
    def takes_states(self) -> bool:
        """See PooledDrafter."""
        return self.peer is not None and CAPABILITY_HIDDEN_STATES in self.peer.capabilities

    @property
    def sequences(self) -> int:
        """See PooledDrafter."""
        return self._conversation.sequences if self._conversation is not None else 0

    @property
    def ready(self) -> bool:
        """See PooledDrafter."""
        return super().ready and self._conversation is not None and self._conversation.writable

    @property
    def has_room(self) -> bool:
        """Whether another sequence may be opened, by the drafter's own limit and by what it said when it was full."""
        most = self.peer.limits.max_sequences if self.peer is not None else 0
        return (not most or self.sequences < most) and self.full_seconds == 0

    @property
    def full_seconds(self) -> float:
        """See PooledDrafter."""
        return max(0.0, self._full_until - asyncio.get_running_loop().time())

    def has(self, sequence_id: int) -> bool:
        """See PooledDrafter."""
        return self._conversation is not None and self._conversation.has(sequence_id)

    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """See PooledDrafter."""
        assert self._conversation is not None, "something is open"
        return self._conversation.opened(sequence_id)

    def inherit(self, predecessor: ServiceDrafter) -> None:
        """Take another drafter's place in the pool: all but what depends on the model, or goes with the address."""
        self.labels, self.stats = predecessor.labels, predecessor.stats
        self.announced, self.given = predecessor.announced, predecessor.given
        self.announcer = predecessor.announcer
        self.trusted = predecessor.trusted
        self.attached_at = predecessor.attached_at

    async def run(self) -> None:
        """Connect and converse, again and again with growing pauses, until released."""
        backoff = Backoff(0.1, 5.0)
        while not self._released:
            await self._sit_out()
            try:
                async with self._connect() as stream:
                    peer = await shake_hands(stream, self._identity, self.address)
                    await self._converse(stream, peer, backoff)
            except (StreamBroken, ServiceError, OutboxFull, TooManyCommands, TooManyFaults) as error:
                self._note(error)
            finally:
                self._disconnected()
            if self._released:
                return
            if self._standing.breaker.tripped:
                pause = self._standing.breaker.take_pause()
                log.warning("drafter suspended", drafter=self.name, address=self.address, seconds=pause)
            else:
                self._set_state(DrafterState.DRAFTER_STATE_UNREACHABLE)
                await asyncio.sleep(max(backoff.next_delay(), self._retry_seconds))

    def release(self) -> bool:
        """End the conversation. True if `run` returns by itself once the drafter has answered, False if there is no
        conversation to end and `run` is to be cancelled."""
        self._released = True
        if self._conversation is None:
            return False
        self._conversation.close_stream()
        return True

    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """See PooledDrafter."""
        assert self._conversation is not None, "only ready drafters open sequences"
        self._standing.count_opening(self.speed)
        self._conversation.open(request, max_tree_nodes)

    def send_verdicts(self, verdicts: Iterable[Verdict]) -> None:
        """See PooledDrafter."""
        if self._conversation is not None:
            self._conversation.send_verdicts(verdicts, self.credit)
            if self.sequences and self.credit.rests is not self._rests:
                self._rests = self.credit.rests
                self._owner.drafter_rests(self, rests=self._rests)

    def close(self, sequence_id: int) -> None:
        """See PooledDrafter."""
        if self._conversation is not None:
            self._conversation.close(sequence_id)

    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """See PooledDrafter."""
        return self._conversation is not None and self._conversation.refuse(sequence_id, epoch, error)

    # Listener of the conversation

    def took_step(self, seconds: float, seen: float) -> None:
        """See Listener. A step is taken to be no shorter than it looks from here, whatever is said of it."""
        self.stats.count_step(seconds)
        self.speed.count_step(max(seconds if plausible(seconds) else 0.0, min(seen, LONGEST_STEP_SECONDS)))

    def was_read(self, seconds: float) -> None:
        """See Listener."""
        self.credit.read(seconds)

    def came_late(self, nodes: int) -> None:
        """See Listener."""
        self.stats.proposed_nodes += nodes
        self.stats.stale_nodes += nodes

    def answered(self, seconds: float) -> None:
        """See Listener."""
        self.stats.count_round_trip(seconds)

    def proposed(self, proposals: list[SequenceProposal]) -> None:
        """See Listener."""
        self.stats.proposed_nodes += sum(len(each.proposal.token_ids) for each in proposals)
        self._owner.drafter_proposed(self, proposals)

    def dropped(self, sequence_id: int, status: status_pb2.Status, why: Dropped) -> None:
        """See Listener."""
        self.last_error = draft_messages.bounded(status)
        if why is Dropped.FULL:
            self._full_until = asyncio.get_running_loop().time() + _retry_seconds(StreamBroken(status), _RETRY_SECONDS)
        self._owner.drafter_dropped(self, [sequence_id], why)

    def broke_protocol(self, status: status_pb2.Status) -> None:
        """See Listener."""
        self.last_error = status
        if self._standing.breaker.count() and self._conversation is not None:
            self._conversation.end(TooManyFaults(status.message))

    def replaced(self) -> None:
        """See Listener."""
        delay = self._standing.replaced()
        if delay > 0:
            self.broke_protocol(_replaced_too_soon().to_status())
        self._owner.drafter_replaced(self, delay)

    @property
    def goes_first(self) -> bool:
        """See PooledDrafter."""
        return super().goes_first and self._standing.goes_first

    # One connection after another

    async def _sit_out(self) -> None:
        """Wait for the end of the address's suspension, if it is suspended."""
        pause = self._standing.breaker.paused_seconds
        if pause > 0:
            self._set_state(DrafterState.DRAFTER_STATE_SUSPENDED)
            self._contact_failed(
                StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"suspended for {pause:.0f} s, as it broke the protocol")
            )
            await asyncio.sleep(pause)

    async def _converse(self, stream: DraftStream, peer: PeerInfo, backoff: Backoff) -> None:
        known, self.peer = self.peer, peer
        if known is not None and known.model != peer.model:
            log.info("another model answers", drafter=self.name, address=self.address, model=shown(peer.model.model_id))
            old_source, self.source = self.source, new_source(self.name)
            self._owner.drafter_renewed(self, old_source)
            self._rests = False
        in_time = self._standing.meet(peer.model)
        self.speed = self._standing.speed
        if not in_time:
            raise _replaced_too_soon()
        conversation = DrafterConversation(stream, peer, self.name, self, self._last_epoch, self._clocks)
        self._conversation = conversation
        self._full_until = self._retry_seconds = 0.0
        self.last_error = None
        self._set_state(DrafterState.DRAFTER_STATE_READY)
        if not self.contact.done():
            self.contact.set_result(None)
        log.info("drafter ready", drafter=self.name, address=self.address, model=shown(peer.model.model_id))
        self._owner.drafter_ready(self)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await conversation.run()
        finally:
            self._last_epoch = conversation.epoch
            if loop.time() - started >= _STEADY_SECONDS:
                backoff.reset()
        if not self._released:
            raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"{self.address} ended the stream")

    def _note(self, error: Exception) -> None:
        """Keep a fault for those who ask, count it if it breaks the protocol, and log it when it is news."""
        if isinstance(error, TooManyFaults):
            return  # each of them was noted
        if not isinstance(error, ServiceError | StreamBroken):
            error = StreamBroken.of(grpc.StatusCode.UNAVAILABLE, str(error))
        self._retry_seconds = _retry_seconds(error, 0.0)
        if self._state not in (DrafterState.DRAFTER_STATE_UNREACHABLE, DrafterState.DRAFTER_STATE_SUSPENDED):
            log.warning("drafter lost", drafter=self.name, address=self.address, reason=shown(str(error)))
        self.show_error(error)
        if draft_messages.breaks_protocol(error):
            self._standing.breaker.count()
        self._contact_failed(error)

    def _disconnected(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is None:
            return
        lost = conversation.sequence_ids
        for sequence_id in lost:
            conversation.forget(sequence_id)
        if lost:
            self._owner.drafter_dropped(self, lost, Dropped.LOST)


def _replaced_too_soon() -> ServiceError:
    return ServiceError(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        ErrorReason.ERROR_REASON_CREDIT_EXCEEDED,
        f"the drafter replaces its model more often than once in {REPLACEMENT_SECONDS:g} s",
    )


def _retry_seconds(error: StreamBroken | ServiceError, otherwise: float) -> float:
    """When the drafter wants to be asked again, within reason; `otherwise` if it does not say."""
    asked = error.retry_seconds if isinstance(error, StreamBroken) else None
    return otherwise if asked is None else min(max(asked, 0.1), _LONGEST_RETRY_SECONDS)
