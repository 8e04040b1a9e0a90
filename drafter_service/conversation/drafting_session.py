"""The drafter's end of one Draft stream, over any transport."""

import asyncio
from collections import OrderedDict
from typing import Any

import torch

from drafter_service.conversation.draft_loop import Commit, DraftLoop, DraftReport, Received
from drafter_service.conversation.handshake import MOST_TOKENS, greet, handshake_expected
from drafter_service.conversation.opened_sequence import OpenedSequence, SequenceKey
from drafter_service.conversation.sequence_opening import (
    SequenceOpening,
    check_length,
    check_token_ids,
    read_hidden_state,
)
from drafter_service.verifiers.shares import VerifierShare
from draftwire.v1 import drafter_service_pb2, features_pb2, model_info_pb2, proposal_pb2, verdict_pb2
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire_core.engine.model.features.feature_codec import feature_count
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.runtime.errors import ServiceError, at_capacity, failed_precondition, invalid_field, not_found
from draftwire_core.runtime.observability.tracing import NO_TRACING, Tracing
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.handshake import shown
from draftwire_core.runtime.rpc.idle_watch import IdleWatch
from draftwire_core.runtime.rpc.message_stream import MessageStream
from draftwire_core.runtime.rpc.stream_writer import OutboxFull, StreamWriter

log = get_logger(__name__)

_FLUSH_SECONDS = 5.0
"""Time that the verifier has to read the queued messages when the drafter ends the stream."""
_MAX_QUEUED = 256
"""Maximum number of messages that wait for the verifier to read them."""
_MAX_FAILED = 4096
"""Maximum number of failed openings remembered; the oldest are dropped first."""
_MOST_ENTRIES = 4096
"""Maximum verdicts or closings in one message; four times the stream's limit on sequences, if that is more."""
_MOST_LOGGED = 64
"""Number of failed sequences per stream logged as warnings; further ones are logged at debug level and counted."""
_RETRY_SECONDS = 1.0
"""Retry delay for a verifier that reads too slowly or has too many sequences open."""

_Stream = MessageStream[drafter_service_pb2.DraftResponse, drafter_service_pb2.DraftRequest]


class DraftingSession:
    """Serves one verifier: passes its openings and verdicts to the draft loop, and sends proposals back.

    Node ids are consecutive, so a drafted proposal cannot be dropped. Credit bounds the proposals to a verifier that
    sends no verdicts. A verifier that sends verdicts without reading the answers fills the outbox, and its stream ends
    with AT_CAPACITY. It then reconnects and opens its sequences with their current tokens.
    """

    def __init__(
        self,
        stream: _Stream,
        drafting: DraftLoop,
        hello: model_info_pb2.PeerInfo,
        share: VerifierShare,
        idle_seconds: float = 0.0,
        hidden_size: int = 0,
        tracing: Tracing = NO_TRACING,
    ) -> None:
        """hello: this drafter's hello, whose limits apply to the verifier. share: the verifier's share.

        idle_seconds: time without any message after which the verifier is given up; 0 waits for ever. hidden_size: size
        of the hidden states in verdicts; 0 for a drafter that takes none. tracing: makes the sequences' spans.
        """
        self._stream = stream
        self._drafting = drafting
        self._hello = hello
        self._share = share
        self._hidden_size = hidden_size
        self._tracing = tracing
        self._writer: StreamWriter[drafter_service_pb2.DraftResponse] = StreamWriter(stream, _MAX_QUEUED)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = IdleWatch(idle_seconds)
        self._number = 0
        self._shared_vocab_size = 0
        self._openings: dict[int, SequenceOpening] = {}
        self._sequences: dict[int, OpenedSequence] = {}
        # The failed epoch of each sequence: messages that the verifier sent before it knew are not new faults.
        self._failed: OrderedDict[int, int] = OrderedDict()
        self._stale_messages = 0
        self._faults = 0

    async def run(self) -> None:
        """Runs the session until the verifier ends the stream or `end` is called.

        Raises ServiceError, alone or in an ExceptionGroup, for a fault that ends the stream; and StreamBroken.
        """
        if not await self._shake_hands():
            return
        self._number = self._drafting.attach(self._take, self._share.name, self._share.weight)
        try:
            async with asyncio.TaskGroup() as tasks:
                writing = tasks.create_task(self._writer.run(), name="draft-writer")
                reading = tasks.create_task(self._read(), name="draft-reader")
                watching = tasks.create_task(self._idle.run(), name="draft-watch")
                await self._ended
                reading.cancel()
                watching.cancel()
                self._writer.close()
                await asyncio.wait({writing}, timeout=_FLUSH_SECONDS)
                if not writing.done():
                    raise at_capacity("the verifier did not read all queued messages", _RETRY_SECONDS)
        finally:
            self._drafting.detach(self._number)
            if self._ended.done() and not self._ended.cancelled():
                self._ended.exception()  # retrieved, so that asyncio does not complain if another fault came first
            for sequence in self._sequences.values():
                sequence.closed("the stream ended")
            log.info(
                "verifier disconnected",
                open_sequences=len(self._sequences),
                stale_messages=self._stale_messages,
                failed_sequences=self._faults,
            )

    def end(self) -> None:
        """Ends the stream cleanly, after the queued messages. Further calls do nothing."""
        if not self._ended.done():
            self._ended.set_result(None)

    @property
    def verifier(self) -> str:
        """The verifier's name."""
        return self._share.name

    @property
    def sequences(self) -> int:
        """Number of open sequences."""
        return len(self._sequences)

    def tell_replaced(self, model: model_info_pb2.ModelInfo) -> None:
        """Notifies the verifier that new streams get another model."""
        replaced = drafter_service_pb2.ModelReplaced(model=model)
        self._send(drafter_service_pb2.DraftResponse(replaced=replaced))

    # The verifier's messages.

    async def _shake_hands(self) -> bool:
        """Exchanges hellos. Returns False if the verifier leaves or the session is ended before that."""
        greeting = asyncio.ensure_future(greet(self._stream, self._hello, self._share.name))
        either: set[asyncio.Future[Any]] = {greeting, self._ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                return False
            shared = greeting.result()
        finally:
            greeting.cancel()
            await asyncio.gather(greeting, return_exceptions=True)
        self._shared_vocab_size = shared or 0
        return shared is not None

    async def _read(self) -> None:
        async for message in self._stream:
            self._idle.heard()
            self._handle(message)
        self.end()

    def _handle(self, message: drafter_service_pb2.DraftRequest) -> None:
        """Dispatches a message. Raises ServiceError for a fault that ends the stream."""
        kind = message.WhichOneof("message")
        if kind == "open":
            self._on_open(message.open)
        elif kind == "verdicts":
            self._on_verdicts(message.verdicts)
        elif kind == "close":
            self._on_close(message.close)
        elif kind == "sequence_error":
            self._on_sequence_error(message.sequence_error)
        elif kind == "features":
            self._on_features(message.features)
        elif kind == "ping":
            self._drafting.ping(self._number, message.ping.number)
        elif kind == "hello":
            raise handshake_expected("a second hello on the stream")
        else:  # an unknown kind of message, from a newer verifier
            log.debug("unknown message ignored", bytes=message.ByteSize())

    def _on_open(self, chunk: drafter_service_pb2.OpenSequence) -> None:
        sequence_id, epoch = chunk.sequence_id, chunk.epoch
        if self._is_stale(sequence_id, epoch, "open"):
            return
        try:
            opening = self._openings.get(sequence_id)
            if opening is None or opening.epoch < epoch or chunk.offset == 0:
                opening = self._begin(chunk)
            opening.add(chunk)
            if opening.complete:
                self._complete(sequence_id, opening)
        except ServiceError as fault:
            self._fail(sequence_id, epoch, fault)

    def _begin(self, chunk: drafter_service_pb2.OpenSequence) -> SequenceOpening:
        """Takes the first chunk of an opening, which replaces any earlier opening of the same id."""
        self._forget(chunk.sequence_id)
        limits = self._hello.limits
        if len(self._sequences) + len(self._openings) >= limits.max_sequences:
            raise at_capacity(f"all {limits.max_sequences} sequences of the stream are open", _RETRY_SECONDS)
        opening = SequenceOpening(chunk, limits, self._hello.model.vocab_size)
        coming = sum(other.committed_length for other in self._openings.values())
        if coming and coming + opening.committed_length > MOST_TOKENS:
            raise at_capacity(
                f"openings of {coming} tokens are incomplete; with {opening.committed_length} more they would exceed "
                f"{MOST_TOKENS}",
                _RETRY_SECONDS,
            )
        self._openings[chunk.sequence_id] = opening
        return opening

    def _complete(self, sequence_id: int, opening: SequenceOpening) -> None:
        del self._openings[sequence_id]
        spec = opening.spec(self._shared_vocab_size)
        key = SequenceKey(self._number, sequence_id, opening.epoch)
        self._drafting.open(key, spec)
        sequence = OpenedSequence(key, len(spec.tokens), opening.max_length, opening.request_id)
        self._sequences[sequence_id] = sequence
        sequence.begin_span(self._tracing, self._hello.model.model_id, opening.trace_context)

    def _on_verdicts(self, batch: verdict_pb2.VerdictBatch) -> None:
        self._check_entries("verdicts.verdicts", len(batch.verdicts))
        most = batch.max_tree_nodes if batch.HasField("max_tree_nodes") else None
        if most == 0:
            raise invalid_field("verdicts.max_tree_nodes", "must be at least 1")
        commits: list[Commit] = []
        for verdict in batch.verdicts:
            if self._is_stale(verdict.sequence_id, verdict.epoch, "verdict"):
                continue
            try:
                commits.append(self._commit(verdict, most))
            except ServiceError as fault:
                self._fail(verdict.sequence_id, verdict.epoch, fault)
        if commits:
            self._drafting.commit(commits)

    def _commit(self, verdict: verdict_pb2.Verdict, max_tree_nodes: int | None) -> Commit:
        sequence = self._sequences.get(verdict.sequence_id)
        if sequence is None or sequence.key.epoch != verdict.epoch:
            raise not_found(
                ErrorReason.ERROR_REASON_UNKNOWN_SEQUENCE,
                f"sequence {verdict.sequence_id} is not open with epoch {verdict.epoch}",
            )
        count = len(verdict.token_ids)
        if count == 0 or sequence.committed_length + count != verdict.committed_length:
            raise failed_precondition(
                ErrorReason.ERROR_REASON_OUT_OF_SYNC,
                f"{count} tokens up to a length of {verdict.committed_length} do not continue the "
                f"{sequence.committed_length} tokens that the drafter has",
            )
        if verdict.committed_length > sequence.max_length:
            raise invalid_field("committed_length", f"exceeds max_length, {sequence.max_length}, of the opening")
        check_length(verdict.committed_length, self._hello.limits.max_sequence_tokens)
        check_token_ids(verdict.token_ids, self._hello.model.vocab_size)
        state = self._state(sequence, verdict)
        sequence.committed_length = verdict.committed_length
        sequence.accepted += verdict.accepted
        return Commit(sequence.key, verdict.committed_length, list(verdict.token_ids), max_tree_nodes, state)

    def _state(self, sequence: OpenedSequence, verdict: verdict_pb2.Verdict) -> torch.Tensor | None:
        """Reads a verdict's hidden state, which the first verdicts may lack: their steps began before the opening."""
        if not self._hidden_size:
            return None
        if not verdict.HasField("hidden_state"):
            if sequence.has_states:
                raise invalid_field(
                    "hidden_state", "must be set: this drafter drafts from it, and earlier verdicts had it"
                )
            return None
        sequence.has_states = True
        return read_hidden_state(verdict.hidden_state, self._hidden_size)

    def _on_features(self, batch: features_pb2.FeatureBatch) -> None:
        if not self._hello.HasField("features"):
            raise invalid_field("features", f"must not be sent: {self._hello.model.model_id} drafts without them")
        self._check_entries("features.features", len(batch.features))
        received: list[Received] = []
        for features in batch.features:
            if self._is_stale(features.sequence_id, features.epoch, "features"):
                continue
            try:
                received.append(self._receive(features))
            except ServiceError as fault:
                self._fail(features.sequence_id, features.epoch, fault)
        if received:
            self._drafting.receive(received)

    def _receive(self, features: features_pb2.TokenFeatures) -> Received:
        sequence = self._sequences.get(features.sequence_id)
        if sequence is None or sequence.key.epoch != features.epoch:
            raise not_found(
                ErrorReason.ERROR_REASON_UNKNOWN_SEQUENCE,
                f"sequence {features.sequence_id} is not open with epoch {features.epoch}",
            )
        kind = self._hello.features
        try:
            count = feature_count(features.values, kind.width, kind.dtype)
        except ValueError as error:
            raise invalid_field("features.values", str(error)) from error
        if features.first_position + count > sequence.max_length:
            raise invalid_field(
                "features.first_position",
                f"{features.first_position} and {count} features exceed max_length, {sequence.max_length}, of the "
                "opening",
            )
        # Room is made for all positions up to these, and a verifier may open a sequence with any max_length.
        check_length(features.first_position + count, self._hello.limits.max_sequence_tokens, "features.first_position")
        return Received(sequence.key, features.first_position, count, features.values, kind.width, kind.dtype)

    def _check_entries(self, field: str, count: int) -> None:
        """Raises ServiceError for a message with so many entries that it would delay every other stream."""
        most = max(_MOST_ENTRIES, 4 * self._hello.limits.max_sequences)
        if count > most:
            raise invalid_field(field, f"must be at most {most} in one message, got {count}")

    def _on_close(self, message: drafter_service_pb2.CloseSequences) -> None:
        self._check_entries("close.sequence_ids", len(message.sequence_ids))
        keys: list[SequenceKey] = []
        for sequence_id in message.sequence_ids:
            self._openings.pop(sequence_id, None)
            self._failed.pop(sequence_id, None)
            sequence = self._sequences.pop(sequence_id, None)
            if sequence is not None:
                sequence.closed()
                keys.append(sequence.key)
        if keys:
            self._drafting.close(keys)

    def _on_sequence_error(self, message: drafter_service_pb2.SequenceError) -> None:
        if self._is_stale(message.sequence_id, message.epoch, "sequence_error"):
            return
        self._log_fault("proposal refused", message.sequence_id, message.epoch, message.status.message)
        self._forget(message.sequence_id, message.status.message)

    def _is_stale(self, sequence_id: int, epoch: int, kind: str) -> bool:
        """Whether a message concerns an opening that was replaced or has failed. Counts stale messages.

        A complete opening that is sent again is stale, too.
        """
        known = []
        if sequence_id in self._failed:
            known.append(self._failed[sequence_id] + 1)
        if sequence_id in self._openings:
            known.append(self._openings[sequence_id].epoch)
        if sequence_id in self._sequences:
            known.append(self._sequences[sequence_id].key.epoch + (kind == "open"))
        if epoch >= max(known, default=0):
            return False
        self._stale_messages += 1
        log.debug("stale message ignored", kind=kind, sequence_id=sequence_id, epoch=epoch)
        return True

    # Messages to the verifier.

    def _take(self, report: DraftReport) -> None:
        """Sends a step's results, which the draft loop reports."""
        share = self._share
        share.rows += report.rows
        share.preemptions += report.preemptions
        share.nodes += sum(len(proposal.token_ids) for _, proposal in report.proposals)
        if self._ended.done():
            return
        for number in report.pongs:
            self._send(drafter_service_pb2.DraftResponse(pong=drafter_service_pb2.Pong(number=number)))
        for key in report.opened:
            if self._is_current(key):
                self._sequences[key.sequence_id].caught_up()
                opened = drafter_service_pb2.SequenceOpened(sequence_id=key.sequence_id, epoch=key.epoch)
                self._send(drafter_service_pb2.DraftResponse(opened=opened))
        proposals = []
        for key, proposal in report.proposals:
            if self._is_current(key):
                self._sequences[key.sequence_id].nodes += len(proposal.token_ids)
                proposals.append(_message(key, proposal))
        if proposals:
            batch = proposal_pb2.ProposalBatch(proposals=proposals, step_seconds=report.seconds)
            self._send(drafter_service_pb2.DraftResponse(proposals=batch))
        for key, fault in report.faults:
            if self._is_current(key):
                # The loop has closed the sequence already.
                self._fail(key.sequence_id, key.epoch, fault, self._sequences.pop(key.sequence_id))

    def _is_current(self, key: SequenceKey) -> bool:
        sequence = self._sequences.get(key.sequence_id)
        return sequence is not None and sequence.key == key

    def _fail(self, sequence_id: int, epoch: int, fault: ServiceError, ended: OpenedSequence | None = None) -> None:
        """Closes an opening and reports the fault to the verifier; the stream's other sequences continue.

        ended: the sequence, if the draft loop has closed it already.
        """
        self._log_fault("sequence failed", sequence_id, epoch, str(fault), ended)
        self._forget(sequence_id, str(fault))
        if ended is not None:
            ended.closed(str(fault))
        self._failed[sequence_id] = epoch
        self._failed.move_to_end(sequence_id)
        if len(self._failed) > _MAX_FAILED:
            self._failed.popitem(last=False)
        error = drafter_service_pb2.SequenceError(sequence_id=sequence_id, epoch=epoch, status=fault.to_status())
        self._send(drafter_service_pb2.DraftResponse(sequence_error=error))

    def _log_fault(
        self, event: str, sequence_id: int, epoch: int, reason: str, sequence: OpenedSequence | None = None
    ) -> None:
        self._faults += 1
        report = log.warning if self._faults <= _MOST_LOGGED else log.debug
        known = sequence or self._sequences.get(sequence_id) or self._openings.get(sequence_id)
        request_id = known.request_id if known is not None else ""
        report(event, sequence_id=sequence_id, epoch=epoch, request_id=request_id, reason=shown(reason))

    def _forget(self, sequence_id: int, why: str = "") -> None:
        """Drops the opening or sequence of an id, if there is one. why: the fault that caused it; empty without one."""
        self._openings.pop(sequence_id, None)
        self._failed.pop(sequence_id, None)
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is not None:
            sequence.closed(why)
            self._drafting.close([sequence.key])

    def _send(self, message: drafter_service_pb2.DraftResponse) -> None:
        if self._ended.done() or self._writer.closed:
            return
        try:
            self._writer.send(message)
        except OutboxFull as error:
            fault = at_capacity(f"the verifier does not read its messages: {error}", _RETRY_SECONDS)
            fault.__cause__ = error
            self._ended.set_exception(fault)


def _message(key: SequenceKey, proposal: Proposal) -> proposal_pb2.Proposal:
    return proposal_pb2.Proposal(
        sequence_id=key.sequence_id,
        epoch=key.epoch,
        committed_length=proposal.committed_length,
        first_node_id=proposal.first_node_id,
        token_ids=proposal.token_ids,
        parent_ids=proposal.parent_ids,
        log_probs=proposal.log_probs,
        distributions=[
            proposal_pb2.DraftDistribution(
                parent_id=parent_id, token_ids=said.token_ids, probabilities=said.probabilities
            )
            for parent_id, said in proposal.distributions
        ],
        last=proposal.last,
    )
