"""The pool's side of a drafter service: keeps a Draft stream to it open and reconnects when it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import grpc

from draftwire.v1.drafter_pool_service_pb2 import DrafterState
from draftwire.v1.model_info_pb2 import ModelInfo, PeerInfo
from draftwire_core.engine.engine.step_result import SequenceFeatures, SequenceOutcome
from draftwire_core.engine.tree.proposal import ProposalError
from draftwire_core.pool.drafter import draft_messages
from draftwire_core.pool.drafter.conversation import DrafterConversation
from draftwire_core.pool.drafter.draft_messages import Dropped
from draftwire_core.pool.drafter.drafter_faults import TooManyFaults
from draftwire_core.pool.drafter.drafter_stream import DraftCall, shake_hands
from draftwire_core.pool.drafter.features import FeatureIntake
from draftwire_core.pool.drafter.pooled_drafter import DETACHED, DrafterEvents, PooledDrafter
from draftwire_core.pool.drafter.proposal_sink import ProposalSink
from draftwire_core.pool.drafter.source import new_source
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest
from draftwire_core.pool.standing.standings import DrafterClocks, DrafterStanding, replaced_too_soon
from draftwire_core.runtime.errors import ServiceError
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.channel import Backoff
from draftwire_core.runtime.rpc.handshake import (
    CAPABILITY_DISTRIBUTIONS,
    CAPABILITY_FEATURES,
    CAPABILITY_HIDDEN_STATES,
    incompatible,
    printable,
    shown,
)
from draftwire_core.runtime.rpc.message_stream import StreamBroken
from draftwire_core.runtime.rpc.stream_writer import OutboxFull
from draftwire_core.runtime.threads.command_thread import TooManyCommands

log = get_logger(__name__)

Connect = Callable[[], AbstractAsyncContextManager[DraftCall]]

_OUT = (
    DrafterState.DRAFTER_STATE_UNREACHABLE,
    DrafterState.DRAFTER_STATE_SUSPENDED,
    DrafterState.DRAFTER_STATE_INCOMPATIBLE,
)
_STEADY_SECONDS = 1.0
"""Minimum duration of a stable conversation, after which the reconnect backoff is reset."""


class ServiceDrafter(PooledDrafter):
    """A drafter that runs as a service, and the conversation with it."""

    def __init__(
        self,
        name: str,
        address: str,
        connect: Connect,
        identity: PeerInfo,
        sink: ProposalSink,
        events: DrafterEvents,
        standing: DrafterStanding,
        clocks: DrafterClocks,
        intake: FeatureIntake | None = None,
    ):
        """connect: opens a call to the address. sink: takes the drafter's proposals. standing: the address's standing,
        which drafters of other names at the address, and its previous model, share. intake: makes features; None if
        this side has none."""
        super().__init__(name, address, events)
        self.pause_policy, self.speed = standing.pause_policy, standing.speed
        self.peer: PeerInfo | None = None
        self._connect = connect
        self._identity = identity
        self._sink = sink
        self._conversation: DrafterConversation | None = None
        self._last_epoch = 0
        self._standing = standing
        self._clocks = clocks
        self._intake = intake
        self._prepared = ""
        """The source that features are made for."""
        self._paused = False
        """The pause last reported to the sink; the sink knows only drafters that have had a sequence."""
        self._retry_seconds = 0.0
        """Pause that the drafter requested when the last conversation ended."""
        self._released = False
        self._lost = DrafterState.DRAFTER_STATE_UNREACHABLE
        """State after the conversation that ended last."""
        self._refusal = ""
        """Why the drafter was last called incompatible in the log; empty once it has drafted for a while."""

    @property
    def draws(self) -> bool:
        """Whether the drafter is trusted and can send the draft distributions that the rejection rule needs."""
        return self.trusted and self.peer is not None and CAPABILITY_DISTRIBUTIONS in self.peer.capabilities

    @property
    def model(self) -> ModelInfo | None:
        """The model in the drafter's last handshake; None before the first."""
        return self.peer.model if self.peer is not None else None

    @property
    def takes_states(self) -> bool:
        """Whether the drafter's last handshake asked for hidden states."""
        return self.peer is not None and CAPABILITY_HIDDEN_STATES in self.peer.capabilities

    @property
    def sequences(self) -> int:
        """Number of sequences open on the stream."""
        return self._conversation.sequences if self._conversation is not None else 0

    @property
    def ready(self) -> bool:
        """Whether the drafter takes new sequences and its stream is writable."""
        return super().ready and self._conversation is not None and self._conversation.writable

    @property
    def has_room(self) -> bool:
        """Whether another sequence may be opened: the drafter is below its limit and did not recently report being
        full."""
        return self._conversation is not None and self._conversation.has_room

    @property
    def full_seconds(self) -> float:
        """Seconds until a full drafter may be asked again; 0 if it is not full."""
        return self._conversation.full_seconds if self._conversation is not None else 0.0

    @property
    def busy(self) -> bool:
        """Whether the drafter has something to compute while a step runs."""
        return self._conversation is not None and self._conversation.busy

    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open on the stream."""
        return self._conversation is not None and self._conversation.has(sequence_id)

    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """Returns a future that resolves to whether the drafter has caught up with an open sequence. Must not be
        cancelled."""
        assert self._conversation is not None, "something is open"
        return self._conversation.opened(sequence_id)

    async def run(self) -> None:
        """Connects and converses until released, reconnecting with growing pauses."""
        backoff = Backoff(0.1, 5.0)
        while not self._released:
            await self._sit_out()
            try:
                async with self._connect() as stream:
                    peer = await shake_hands(stream, self._identity, self.address)
                    await self._converse(stream, peer, backoff)
            except (StreamBroken, ServiceError, OutboxFull, TooManyCommands, TooManyFaults) as error:
                self._note(error)
            except Exception as error:  # noqa: BLE001 - one drafter's messages must not end the requests of all
                self._report(error)
            finally:
                self._disconnected()
            if self._released:
                return
            if self._standing.breaker.tripped:
                pause = self._standing.breaker.take_pause()
                log.warning("drafter suspended", drafter=self.name, address=self.address, seconds=pause)
            else:
                self._set_state(self._lost)
                await asyncio.sleep(max(backoff.next_delay(), self._retry_seconds))

    def release(self) -> bool:
        """Ends the conversation. Returns True if `run` returns by itself once the drafter has answered, False if there
        is no conversation and the caller must cancel `run`."""
        self._released = True
        self._contact_failed(self.unreachable(DETACHED))
        if self._conversation is None:
            return False
        self._conversation.close_stream()
        return True

    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """Opens a sequence on the stream, and counts the opening for the address."""
        assert self._conversation is not None, "only ready drafters open sequences"
        self._standing.count_opening(self.speed)
        self._conversation.open(request, max_tree_nodes)
        self._tell_pause()

    def send_verdicts(self, outcomes: Sequence[SequenceOutcome]) -> None:
        """Sends the verdicts of a step; while the drafter is paused they are held back."""
        if self._conversation is not None:
            self._conversation.send_verdicts(outcomes)
            self._tell_pause()

    def step_begun(self, step_seconds: float) -> None:
        """Lets the drafter gather its nodes during a step."""
        if self._conversation is not None:
            self._conversation.step_begun(step_seconds)

    def charge_features(self, seconds: float) -> None:
        """Charges the engine's time for the drafter's features, which may pause it at once."""
        super().charge_features(seconds)
        self._tell_pause()

    def send_features(self, features: Sequence[SequenceFeatures]) -> None:
        """Sends features on the stream; those of sequences that are not open there are dropped."""
        assert self._intake is not None, "features were made"
        if self._conversation is not None:
            self._conversation.send_features(features, self._intake)
        else:
            self._intake.sent(self.source, sum(len(each.values) for each in features))

    def close(self, sequence_id: int) -> None:
        """Closes a sequence on the stream; does nothing if it is not open."""
        if self._conversation is not None:
            self._conversation.close(sequence_id)

    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """Reports a refused proposal on the stream. Returns False if that opening has already ended."""
        return self._conversation is not None and self._conversation.refuse(sequence_id, epoch, error)

    def _tell_pause(self) -> None:
        """Notifies the sink of a pause that has begun or ended."""
        if self.sequences and self.pause_policy.paused is not self._paused:
            self._paused = self.pause_policy.paused
            self._sink.pause(self.source, paused=self._paused)

    @property
    def goes_first(self) -> bool:
        """Whether nothing has been measured yet, and the address may still receive requests for that reason."""
        return super().goes_first and self._standing.goes_first

    # Connections

    async def _sit_out(self) -> None:
        """Waits for the end of the address's suspension, if it is suspended."""
        pause = self._standing.breaker.paused_seconds
        if pause > 0:
            self._set_state(DrafterState.DRAFTER_STATE_SUSPENDED)
            self._contact_failed(
                StreamBroken.of(
                    grpc.StatusCode.UNAVAILABLE, f"suspended for {pause:.0f} s because it broke the protocol"
                )
            )
            await asyncio.sleep(pause)

    async def _converse(self, stream: DraftCall, peer: PeerInfo, backoff: Backoff) -> None:
        known, self.peer = self.peer, peer
        if known is not None and (known.model != peer.model or known.features != peer.features):
            log.info("drafter model changed", drafter=self.name, address=self.address, model=shown(peer.model.model_id))
            old_source, self.source = self.source, new_source(self.name)
            self._sink.forget(old_source)
            self._events.drafter_renewed(self)
            self._paused = False
        in_time = self._standing.meet(peer.model)
        self.speed = self._standing.speed
        if not in_time:
            raise replaced_too_soon()
        await self._prepare(peer)
        conversation = self._conversation = DrafterConversation(
            stream, peer, self, self._standing, self._sink, self._events, self._last_epoch, self._clocks
        )
        self._retry_seconds = 0.0
        self.last_error = None
        self._set_state(DrafterState.DRAFTER_STATE_READY)
        if not self.contact.done():
            self.contact.set_result(None)
        log.info("drafter connected", drafter=self.name, address=self.address, model=shown(peer.model.model_id))
        self._events.drafter_ready(self)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await conversation.run()
        finally:
            self._last_epoch = conversation.epoch
            if loop.time() - started >= _STEADY_SECONDS:
                backoff.reset()
                self._refusal = ""
        if not self._released:
            raise StreamBroken.of(grpc.StatusCode.UNAVAILABLE, f"{self.address} ended the stream")

    async def _prepare(self, peer: PeerInfo) -> None:
        """Has the features made that the drafter reads, if it reads any. Raises ServiceError, StreamBroken."""
        if self._intake is None or CAPABILITY_FEATURES not in peer.capabilities:
            return
        if self._prepared != self.source:
            await self._intake.prepare(self.source, self.address, peer.features)
            self._prepared = self.source
        self._intake.sent(self.source)  # what waited on an earlier stream is lost

    def _note(self, error: Exception) -> None:
        """Shows an error, counts it if it breaks the protocol, and logs it if the drafter was reachable before."""
        self._lost = DrafterState.DRAFTER_STATE_UNREACHABLE
        if isinstance(error, TooManyFaults):
            return  # each fault was noted when it occurred
        if not isinstance(error, ServiceError | StreamBroken):
            error = StreamBroken.of(grpc.StatusCode.UNAVAILABLE, str(error))
        self._retry_seconds = draft_messages.retry_seconds(error, 0.0)
        if incompatible(error.code, error.reason_name):
            self._lost = DrafterState.DRAFTER_STATE_INCOMPATIBLE
            reason = printable(str(error))
            if reason != self._refusal:  # it may be ready in between, or suspended
                log.warning("handshake refused", drafter=self.name, address=self.address, reason=reason)
            self._refusal = reason
        elif self._state not in _OUT:
            log.warning("drafter lost", drafter=self.name, address=self.address, reason=shown(str(error)))
        self.show_error(error)
        if draft_messages.breaks_protocol(error):
            self._standing.breaker.count()
        self._contact_failed(error)

    def _report(self, error: Exception) -> None:
        """Reports an error of this program in a conversation, which ends as if the drafter were lost."""
        told = {"message": "conversation with a drafter failed", "drafter": self.name, "exception": error}
        asyncio.get_running_loop().call_exception_handler(told)
        self._note(StreamBroken.of(grpc.StatusCode.INTERNAL, f"{self.address}: the conversation failed, see the log"))

    def _disconnected(self) -> None:
        conversation, self._conversation = self._conversation, None
        if conversation is None:
            return
        lost = conversation.sequence_ids
        for sequence_id in lost:
            conversation.forget(sequence_id)
        if lost:
            self._events.drafter_dropped(self, lost, Dropped.LOST)
