"""The verifier's end of one Draft stream: sends openings and verdicts, receives proposals."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Sequence

from draftwire.v1.drafter_service_pb2 import (
    CloseSequences,
    DraftRequest,
    DraftResponse,
    SequenceError,
    SequenceOpened,
    StepBegun,
)
from draftwire.v1.model_info_pb2 import PeerInfo
from draftwire.v1.proposal_pb2 import ProposalBatch
from draftwire_core.engine.engine.step_result import SequenceFeatures, SequenceOutcome
from draftwire_core.engine.tree.proposal import ProposalError
from draftwire_core.pool.drafter import draft_messages
from draftwire_core.pool.drafter.draft_messages import Dropped
from draftwire_core.pool.drafter.drafter_faults import DrafterFaults
from draftwire_core.pool.drafter.drafter_stream import DraftCall, DrafterStream
from draftwire_core.pool.drafter.features import FeatureIntake
from draftwire_core.pool.drafter.gathering import Gathering
from draftwire_core.pool.drafter.opening import DrafterOpening, OpenSequences
from draftwire_core.pool.drafter.pooled_drafter import DrafterEvents, PooledDrafter
from draftwire_core.pool.drafter.proposal_sink import ProposalSink, SequenceProposal
from draftwire_core.pool.drafter.speculated_request import SpeculatedRequest
from draftwire_core.pool.standing.drafter_stats import LONGEST_STEP_SECONDS, plausible
from draftwire_core.pool.standing.flood_limit import FloodLimit
from draftwire_core.pool.standing.standings import DrafterClocks, DrafterStanding, replaced_too_soon
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.handshake import (
    CAPABILITY_FEATURES,
    CAPABILITY_HIDDEN_STATES,
    CAPABILITY_PING,
    shown,
)
from draftwire_core.runtime.rpc.message_stream import StreamBroken

log = get_logger(__name__)

_RETRY_SECONDS = 1.0
"""Seconds after which a full drafter is asked again if it names no time."""
_LONGEST = 0.01
"""Maximum CPU time charged for handling a message, in seconds; any more is due to something else, such as garbage
collection."""


class DrafterConversation:
    """One stream after its handshake, and the sequences open on it. Used in the event loop only."""

    def __init__(
        self,
        stream: DraftCall,
        peer: PeerInfo,
        drafter: PooledDrafter,
        standing: DrafterStanding,
        sink: ProposalSink,
        events: DrafterEvents,
        last_epoch: int,
        clocks: DrafterClocks,
    ):
        """drafter: the drafter at the other end, whose measurements are updated here. standing: the standing of its
        address. last_epoch: epoch of the last opening on earlier streams."""
        self.peer = peer
        self._stream = stream
        self._drafter = drafter
        self._standing = standing
        self._sink = sink
        self._events = events
        self._clocks = clocks
        self._proposed_at = clocks.now()
        """Time of the last proposal for an opening."""
        self._full_until = 0.0
        """Event loop time until which the drafter accepts no more sequences."""
        self._flood_limit = FloodLimit(clocks.now)
        self._open = OpenSequences(last_epoch, self._flood_limit, CAPABILITY_FEATURES in peer.capabilities)
        self._wire = DrafterStream(stream, drafter.name, self._flood_limit, clocks)
        self._faults = DrafterFaults(drafter, self._wire, standing.breaker)
        self._gathering = Gathering(peer.capabilities)

    @property
    def writable(self) -> bool:
        """Whether messages still reach the drafter."""
        return self._wire.writable

    @property
    def epoch(self) -> int:
        """Epoch of the last opening."""
        return self._open.epoch

    @property
    def sequence_ids(self) -> list[int]:
        """The open sequences."""
        return list(self._open)

    @property
    def sequences(self) -> int:
        """Number of open sequences."""
        return len(self._open)

    def has(self, sequence_id: int) -> bool:
        """Whether a sequence is open."""
        return self._open.get(sequence_id) is not None

    @property
    def has_room(self) -> bool:
        """Whether another sequence may be opened: the drafter is below its limit and did not recently report being
        full."""
        most = self.peer.limits.max_sequences
        return (not most or self.sequences < most) and self.full_seconds == 0

    @property
    def full_seconds(self) -> float:
        """Seconds until a full drafter may be asked again; 0 if it is not full."""
        return max(0.0, self._full_until - asyncio.get_running_loop().time())

    def opened(self, sequence_id: int) -> asyncio.Future[bool]:
        """Returns a future that resolves to whether the drafter has caught up with an open sequence, or is paused."""
        opening = self._open.get(sequence_id)
        assert opening is not None, "the sequence is open"
        return opening.ready

    async def run(self) -> None:
        """Runs the conversation until the drafter ends the stream, after `close_stream` or by itself.

        Raises StreamBroken; OutboxFull if the drafter does not read; ServiceError for a protocol error that concerns
        more than one sequence; TooManyFaults for too many protocol errors; TooManyCommands from the sink.
        """
        await self._wire.run(self._read(), pings=CAPABILITY_PING in self.peer.capabilities)

    def close_stream(self) -> None:
        """Stops sending, and lets the drafter end its side."""
        self._wire.close()

    def open(self, request: SpeculatedRequest, max_tree_nodes: int) -> None:
        """Opens a sequence with its committed tokens, during a pause at its end; `opened` is done when the drafter has
        caught up, or at once during a pause."""
        limit = self.peer.limits.max_tree_nodes
        credit = min(max_tree_nodes, limit) if limit else max_tree_nodes
        opening = self._open.open(request, credit)
        paused = self._drafter.pause_policy.paused and not opening.always_draft
        if paused:
            opening.ready.set_result(True)
        # Features are made from the beginning of a sequence on, for a drafter that has it.
        if not paused or opening.reads_features:
            self._begin(opening)

    def _begin(self, opening: DrafterOpening) -> None:
        """Sends an opening, with the tokens that are committed by now."""
        request = self._open.begin(opening, self._clocks.now())
        for message in draft_messages.openings(request, opening.epoch, opening.max_tree_nodes):
            self._wire.send(message)
        log.debug(
            "sequence opened",
            drafter=self._drafter.name,
            sequence_id=request.sequence_id,
            epoch=opening.epoch,
            request_id=opening.request_id,
            committed_length=len(request.tokens),
        )

    def send_verdicts(self, outcomes: Sequence[SequenceOutcome]) -> None:
        """Sends a step's verdicts for the sequences open here. The first verdicts after a pause include everything that
        was committed during it. Sequences that always draft get theirs also during a pause."""
        began = self._clocks.spent()
        policy = self._drafter.pause_policy
        hidden_states = CAPABILITY_HIDDEN_STATES in self.peer.capabilities
        paused = policy.paused
        drafted_for, on_demand = self._open.hold(outcomes, paused=paused, hidden_states=hidden_states)
        if drafted_for:
            policy.stepped(drafted_for, on_demand=on_demand)
        # A step that was drafted for has been charged with its slowdown; what is done on demand in a pause is free.
        if (paused or not drafted_for) and self._open.catching_up(paused=paused):
            policy.catching_up()
        if not policy.paused:
            for opening in self._open.waiting:
                self._begin(opening)
        if not policy.paused or on_demand:
            batch = self._open.verdicts(
                paused=policy.paused, max_tree_nodes=policy.max_tree_nodes, now=self._clocks.now()
            )
            if batch is not None:
                self._wire.send(DraftRequest(verdicts=batch))
            # Holding verdicts back during a pause is free: where steps are short, no trial could be paid for otherwise.
            if not policy.paused:
                policy.charge(self._seconds_since(began))
        policy.charge(self._stream.take_seconds())

    @property
    def busy(self) -> bool:
        """Whether the drafter has something to compute."""
        return bool(self._open) and (not self._drafter.pause_policy.paused or self._open.working)

    def step_begun(self, step_seconds: float) -> None:
        """Lets the drafter gather its nodes in a step that is expected to take so long, if that saves messages."""
        if self._open and not self._drafter.pause_policy.paused:
            seconds = self._gathering.begin(step_seconds, self._clocks.now(), self._drafter.stats)
            if seconds:
                self._wire.send(DraftRequest(step_begun=StepBegun(seconds=seconds)))

    def send_features(self, features: Sequence[SequenceFeatures], intake: FeatureIntake) -> None:
        """Sends features of sequences that are open here. intake: told what has been written."""
        began = self._clocks.spent()
        source, written = self._drafter.source, []
        for each in features:
            opening = self._open.get(each.sequence_id)
            if opening is None:
                intake.sent(source, len(each.values))
            else:
                written.append((opening.epoch, each))
        for batch, size in draft_messages.feature_batches(written):
            self._wire.send(DraftRequest(features=batch), written=functools.partial(intake.sent, source, size))
        self._drafter.pause_policy.charge(self._seconds_since(began) + self._stream.take_seconds())

    def _seconds_since(self, began: float) -> float:
        """Returns the processor time in seconds since `began`, as far as it is charged."""
        return min(self._clocks.spent() - began, _LONGEST)

    def close(self, sequence_id: int) -> None:
        """Closes a sequence; does nothing if it is not open."""
        opening = self._open.get(sequence_id)
        if opening is not None:
            self.forget(sequence_id)
            if opening.waiting is not None:
                return
            self._wire.send(DraftRequest(close=CloseSequences(sequence_ids=[sequence_id])))
            log.debug(
                "sequence closed", drafter=self._drafter.name, sequence_id=sequence_id, request_id=opening.request_id
            )

    def refuse(self, sequence_id: int, epoch: int, error: ProposalError) -> bool:
        """Reports a refused proposal to the drafter and closes the sequence. Returns False if that opening has already
        ended."""
        opening = self._open.get(sequence_id, epoch)
        if opening is None:
            return False
        self.forget(sequence_id)
        log.warning(
            "proposal refused",
            drafter=self._drafter.name,
            sequence_id=sequence_id,
            request_id=opening.request_id,
            reason=str(error),
        )
        self._faults.send(sequence_id, epoch, draft_messages.proposal_error(error))
        return True

    def forget(self, sequence_id: int) -> bool:
        """Drops a sequence. Returns whether it was open."""
        return self._open.forget(sequence_id)

    async def _read(self) -> None:
        async for message in self._stream:
            began = self._clocks.spent()
            try:
                self._flood_limit.spend(message, self._stream.take_bytes())
                self._take(message)
            finally:
                seconds = self._seconds_since(began) + self._stream.take_seconds()
                # Pings are the verifier's own idea: a drafter that was idle for an hour owes nothing for them.
                if not message.HasField("pong"):
                    self._drafter.pause_policy.charge(seconds)

    def _take(self, message: DraftResponse) -> None:
        kind = message.WhichOneof("message")
        if kind == "proposals":
            self._take_proposals(message.proposals)
        elif kind == "opened":
            self._take_opened(message.opened)
        elif kind == "sequence_error":
            self._take_error(message.sequence_error)
        elif kind == "pong":
            seconds = self._wire.answered(message.pong.number)
            if seconds is not None:
                self._drafter.stats.count_round_trip(seconds)
        elif kind == "replaced":
            self._take_replaced()
        elif kind == "hello":
            raise draft_messages.handshake_fault("a second handshake came")
        else:  # an unknown kind of message, from a newer drafter
            log.debug("unknown message ignored", drafter=self._drafter.name, kind=kind)

    def _take_proposals(self, batch: ProposalBatch) -> None:
        stats, proposals = self._drafter.stats, []
        sent_at = -math.inf
        for message in batch.proposals:
            opening = self._open.get(message.sequence_id, message.epoch)
            if message.epoch > self.epoch:
                self._faults.refuse_unknown(message)
            elif opening is None:
                stats.proposed_nodes += len(message.token_ids)
                stats.stale_nodes += len(message.token_ids)
            else:
                sent_at = max(sent_at, opening.sent_at(message.committed_length))
                proposal = draft_messages.proposal(message, gathered=batch.gathered_steps > 0)
                proposals.append(SequenceProposal(message.sequence_id, message.epoch, proposal))
        seen = 0.0
        if proposals:
            # The drafter has been working since its base was sent, or since its last proposal; or it has waited.
            now, waited = self._clocks.now(), self._gathering.until if batch.gathered_steps else -math.inf
            seen, self._proposed_at = max(0.0, now - max(sent_at, self._proposed_at, waited)), now
        self._count_step(batch, seen)
        if proposals:
            stats.proposed_nodes += sum(len(each.proposal.token_ids) for each in proposals)
            self._sink.propose(self._drafter.source, proposals)

    def _count_step(self, batch: ProposalBatch, seen: float) -> None:
        """Counts the drafting step of a message, which took `seen` seconds as observed here. The longer of this and
        what the drafter reports determines its speed."""
        self._drafter.stats.count_step(batch.step_seconds / max(1, batch.gathered_steps))
        reported = batch.step_seconds if plausible(batch.step_seconds) else 0.0
        self._drafter.speed.count_step(max(reported, min(seen, LONGEST_STEP_SECONDS)))

    def _take_replaced(self) -> None:
        """Handles the notice that new streams to the drafter get another model."""
        delay = self._standing.replaced()
        if delay > 0:
            self._faults.count(replaced_too_soon().to_status())
        self._events.drafter_replaced(self._drafter, delay)

    def _take_opened(self, opened: SequenceOpened) -> None:
        opening = self._open.get(opened.sequence_id, opened.epoch)
        if opening is not None:
            opening.catch_up()

    def _take_error(self, error: SequenceError) -> None:
        opening = self._open.get(error.sequence_id, error.epoch)
        if opening is None:
            return
        broken = StreamBroken(error.status)
        reason = broken.reason_name
        log.warning(
            "sequence failed",
            drafter=self._drafter.name,
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
            self._full_until = asyncio.get_running_loop().time() + draft_messages.retry_seconds(broken, _RETRY_SECONDS)
        self._drafter.last_error = draft_messages.bounded(error.status)
        self._events.drafter_dropped(self._drafter, [error.sequence_id], why)
