"""The drafter's end of one Draft stream, over any transport."""

import asyncio
from typing import Any

from drafter_service.conversation.draft_loop import Commit, DraftLoop, DraftReport, Received
from drafter_service.conversation.gathered_proposals import GatheredProposals
from drafter_service.conversation.handshake import greet, handshake_expected
from drafter_service.conversation.opened_sequence import SequenceKey
from drafter_service.conversation.stream_sequences import RETRY_SECONDS, StreamSequences
from drafter_service.verifiers.shares import VerifierShare
from draftwire.v1 import drafter_service_pb2, features_pb2, model_info_pb2, proposal_pb2, verdict_pb2
from draftwire_core.engine.tree.proposal import Proposal
from draftwire_core.runtime.errors import ServiceError, at_capacity, invalid_field
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
_MOST_ENTRIES = 4096
"""Maximum verdicts or closings in one message; four times the stream's limit on sequences, if that is more."""
_MOST_LOGGED = 64
"""Number of failed sequences per stream logged as warnings; further ones are logged at debug level and counted."""

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
        self._writer: StreamWriter[drafter_service_pb2.DraftResponse] = StreamWriter(stream, _MAX_QUEUED)
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._idle = IdleWatch(idle_seconds)
        self._number = 0
        self._sequences = StreamSequences(drafting, hello, hidden_size, tracing)
        self._gathered = GatheredProposals(
            lambda batch: self._send(drafter_service_pb2.DraftResponse(proposals=batch)),
            lambda key: self._sequences.current(key) is not None,
        )
        self._faults = 0

    async def run(self) -> None:
        """Runs the session until the verifier ends the stream or `end` is called.

        Raises ServiceError, alone or in an ExceptionGroup, for a fault that ends the stream; and StreamBroken.
        """
        shared_vocab_size = await self._shake_hands()
        if shared_vocab_size is None:
            return
        self._number = self._drafting.attach(self._take, self._share.name, self._share.weight)
        self._sequences.start(self._number, shared_vocab_size)
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
                    raise at_capacity("the verifier did not read all queued messages", RETRY_SECONDS)
        finally:
            self._drafting.detach(self._number)
            self._gathered.stop()
            if self._ended.done() and not self._ended.cancelled():
                self._ended.exception()  # retrieved, so that asyncio does not complain if another fault came first
            self._sequences.end()
            log.info(
                "verifier disconnected",
                open_sequences=len(self._sequences),
                stale_messages=self._sequences.stale_messages,
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

    async def _shake_hands(self) -> int | None:
        """Exchanges hellos. Returns the number of token ids that both sides have; None if the verifier leaves or the
        session is ended before that."""
        greeting = asyncio.ensure_future(greet(self._stream, self._hello, self._share.name))
        either: set[asyncio.Future[Any]] = {greeting, self._ended}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._ended.done():
                return None
            return greeting.result()
        finally:
            greeting.cancel()
            await asyncio.gather(greeting, return_exceptions=True)

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
        elif kind == "step_begun":
            self._gathered.gather(message.step_begun.seconds)
        elif kind == "ping":
            self._drafting.ping(self._number, message.ping.number)
        elif kind == "hello":
            raise handshake_expected("a second hello on the stream")
        else:  # an unknown kind of message, from a newer verifier
            log.debug("unknown message ignored", bytes=message.ByteSize())

    def _on_open(self, chunk: drafter_service_pb2.OpenSequence) -> None:
        sequence_id, epoch = chunk.sequence_id, chunk.epoch
        if self._sequences.is_stale(sequence_id, epoch, "open"):
            return
        try:
            self._sequences.add(chunk)
        except ServiceError as fault:
            self._fail(sequence_id, epoch, fault)

    def _on_verdicts(self, batch: verdict_pb2.VerdictBatch) -> None:
        self._check_entries("verdicts.verdicts", len(batch.verdicts))
        most = batch.max_tree_nodes if batch.HasField("max_tree_nodes") else None
        if most == 0:
            raise invalid_field("verdicts.max_tree_nodes", "must be at least 1")
        self._gathered.release()
        commits: list[Commit] = []
        for verdict in batch.verdicts:
            if self._sequences.is_stale(verdict.sequence_id, verdict.epoch, "verdict"):
                continue
            try:
                commits.append(self._sequences.commit(verdict, most))
            except ServiceError as fault:
                self._fail(verdict.sequence_id, verdict.epoch, fault)
        if commits:
            self._drafting.commit(commits)

    def _on_features(self, batch: features_pb2.FeatureBatch) -> None:
        if not self._hello.HasField("features"):
            raise invalid_field("features", f"must not be sent: {self._hello.model.model_id} drafts without them")
        self._check_entries("features.features", len(batch.features))
        received: list[Received] = []
        for features in batch.features:
            if self._sequences.is_stale(features.sequence_id, features.epoch, "features"):
                continue
            try:
                received.append(self._sequences.receive(features))
            except ServiceError as fault:
                self._fail(features.sequence_id, features.epoch, fault)
        if received:
            self._drafting.receive(received)

    def _check_entries(self, field: str, count: int) -> None:
        """Raises ServiceError for a message with so many entries that it would delay every other stream."""
        most = max(_MOST_ENTRIES, 4 * self._hello.limits.max_sequences)
        if count > most:
            raise invalid_field(field, f"must be at most {most} in one message, got {count}")

    def _on_close(self, message: drafter_service_pb2.CloseSequences) -> None:
        self._check_entries("close.sequence_ids", len(message.sequence_ids))
        self._sequences.close(message.sequence_ids)

    def _on_sequence_error(self, message: drafter_service_pb2.SequenceError) -> None:
        if self._sequences.is_stale(message.sequence_id, message.epoch, "sequence_error"):
            return
        self._log_fault("proposal refused", message.sequence_id, message.epoch, message.status.message)
        self._sequences.forget(message.sequence_id, message.status.message)

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
            sequence = self._sequences.current(key)
            if sequence is not None:
                sequence.caught_up()
                opened = drafter_service_pb2.SequenceOpened(sequence_id=key.sequence_id, epoch=key.epoch)
                self._send(drafter_service_pb2.DraftResponse(opened=opened))
        proposals = {}
        for key, proposal in report.proposals:
            sequence = self._sequences.current(key)
            if sequence is not None:
                sequence.nodes += len(proposal.token_ids)
                proposals[key] = _message(key, proposal)
        if proposals:
            self._gathered.take(proposals, report.seconds)
        for key, fault in report.faults:
            if self._sequences.current(key) is not None:
                self._fail(key.sequence_id, key.epoch, fault, ended=True)

    def _fail(self, sequence_id: int, epoch: int, fault: ServiceError, *, ended: bool = False) -> None:
        """Closes an opening and reports the fault to the verifier; the stream's other sequences continue.

        ended: whether the draft loop has closed the sequence already.
        """
        self._log_fault("sequence failed", sequence_id, epoch, str(fault))
        self._sequences.fail(sequence_id, epoch, str(fault), ended=ended)
        error = drafter_service_pb2.SequenceError(sequence_id=sequence_id, epoch=epoch, status=fault.to_status())
        self._send(drafter_service_pb2.DraftResponse(sequence_error=error))

    def _log_fault(self, event: str, sequence_id: int, epoch: int, reason: str) -> None:
        self._faults += 1
        report = log.warning if self._faults <= _MOST_LOGGED else log.debug
        request_id = self._sequences.request_id(sequence_id)
        report(event, sequence_id=sequence_id, epoch=epoch, request_id=request_id, reason=shown(reason))

    def _send(self, message: drafter_service_pb2.DraftResponse) -> None:
        if self._ended.done() or self._writer.closed:
            return
        try:
            self._writer.send(message)
        except OutboxFull as error:
            fault = at_capacity(f"the verifier does not read its messages: {error}", RETRY_SECONDS)
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
