"""The conversation of one Verify stream, a request whose caller drafts, independent of transport."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from draftwire.v1 import verifier_service_pb2 as pb
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.model_info_pb2 import ModelInfo
from draftwire.v1.proposal_pb2 import Proposal as ProposalMessage
from draftwire.v1.verdict_pb2 import Verdict
from draftwire_core.engine.tree.proposal import Proposal, ProposalError, ProposalFault
from draftwire_core.pool.drafter.draft_messages import proposal_error, tell_sampling
from draftwire_core.pool.drafter.source import CALLER
from draftwire_core.pool.standing.flood_limit import FloodLimit
from draftwire_core.runtime.errors import ServiceError, at_capacity, failed_precondition, invalid_field
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.rpc.message_stream import MessageStream
from draftwire_core.runtime.threads.command_thread import TooManyCommands
from verifier_service.reading.generate_order import GenerateOrder
from verifier_service.running.caller_drafting import CallerDrafting
from verifier_service.running.request_call import Metadata, RequestCall, request_call
from verifier_service.running.running_request import RunningRequest
from verifier_service.verifier import Verifier

log = get_logger(__name__)

_START_SECONDS = 10.0
"""Time limit for a caller to send its request."""
_RETRY_SECONDS = 1.0
_LONGEST = 0.01
"""Maximum processor time charged for handling a message, in seconds; any more is due to something else, such as garbage
collection."""
_UNASKED = 1024
"""Times as much as a byte counts for the flood limit of a request without credit, which has no account that the time
of its messages is charged to."""

_Stream = MessageStream[pb.VerifyResponse, pb.VerifyRequest]


class _Flood(Exception):
    """Raised for a caller that sends more than it was asked for."""

    def __init__(self, error: ServiceError) -> None:
        super().__init__(str(error))
        self.error = error


class VerifyConversation:
    """Runs one caller's request: passes its proposals to the engine, and verdicts and events back.

    A caller that drafts is bounded as a drafter of the pool is: it may send as much as its verdicts ask for, and what
    its messages take is charged to its account. A caller that sends more loses the stream, with CREDIT_EXCEEDED.

    A verdict holds the tokens of the chunk that follows it. Chunks that a slow caller has not read are joined, and so
    are their verdicts. So what waits for a caller is bounded by its request's length.
    """

    def __init__(
        self,
        stream: _Stream,
        verifier: Verifier,
        peer: str = "",
        metadata: Metadata = (),
        remaining: Callable[[], float | None] = lambda: None,
    ) -> None:
        """peer: the name that the request counts under. metadata: of the call. remaining: returns the seconds until the
        call's deadline; None if it has none."""
        self._stream = stream
        self._verifier = verifier
        self._peer = peer
        self._metadata = metadata
        self._remaining = remaining
        self._request_id = ""
        self._refused: ServiceError | None = None
        self._refusal_sent = False
        self._flood_limit = FloodLimit(asyncio.get_running_loop().time, "the caller")
        self._credit = 0
        """Maximum live nodes of the request's tree."""

    async def run(self) -> None:
        """Converses until the request is finished.

        Raises the ServiceError that ends the stream, alone or in an ExceptionGroup, and ClientGone.
        """
        self._verifier.flooders.check(self._peer)
        start = await self._start()
        _check_tokenizer(self._verifier.model.info, start.tokenizer_sha256)
        alone, message = _share_of_pool(start.request)
        with request_call(self._verifier.tracing, self._verifier.model.info.model_id, message, self._metadata) as call:
            await self._run(alone, message, call)

    async def _run(self, alone: bool, message: pb.GenerateRequest, call: RequestCall) -> None:
        self._request_id = call.request_id
        self._verifier.check_room(self._remaining())
        order = await self._verifier.read(message, call.request_id, self._peer)
        speculates = order.speculate
        with self._verifier.request_counts.refusals():
            _check_rule(order)
        if alone:
            order = replace(order, speculate=False)
        async with self._verifier.run(order, self._peer, call, self._remaining()) as request:
            if not speculates or request.finished:
                await self._converse(request, 0, None)
                return
            with self._verifier.request_drafters.caller(request.sequence_id, self._refuse_proposal) as drafting:
                await self._converse(request, self._verifier.model.limits.max_tree_nodes, drafting)

    async def _start(self) -> pb.VerifyStart:
        try:
            async with asyncio.timeout(_START_SECONDS):
                first = await self._stream.read()
        except TimeoutError as error:
            raise _start_expected(f"no request within {_START_SECONDS:g} seconds") from error
        kind = first.WhichOneof("message") if first is not None else None
        if first is None or kind != "start":
            raise _start_expected(f"the first message must be start, got {kind}")
        return first.start

    async def _converse(self, request: RunningRequest, max_tree_nodes: int, drafting: CallerDrafting | None) -> None:
        self._credit = max_tree_nodes
        self._flood_limit.opened(max_tree_nodes)
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(self._read(request, drafting), name="caller-reader")
            await self._stream.write(pb.VerifyResponse(opened=self._opened(request, max_tree_nodes)))
            await self._tell(request)
            reading.cancel()

    def _opened(self, request: RunningRequest, max_tree_nodes: int) -> pb.VerifyOpened:
        return pb.VerifyOpened(
            token_ids=request.order.spec.tokens,
            sampling=tell_sampling(request.order.sampling),
            max_tree_nodes=max_tree_nodes,
            max_length=request.order.max_length,
            vocab_size=self._verifier.model.info.vocab_size,
        )

    # Messages from the caller.

    async def _read(self, request: RunningRequest, drafting: CallerDrafting | None) -> None:
        """Takes proposals until the caller ends its side; that ends its drafting, not its request.

        drafting: None if the request gives no credit. Raises ServiceError for a caller that sends more than it was
        asked for.
        """
        try:
            async for message in self._stream:
                self._read_one(message, request, drafting)
        except _Flood as flood:
            self._verifier.flooders.count(self._peer)
            raise flood.error from None

    def _read_one(self, message: pb.VerifyRequest, request: RunningRequest, drafting: CallerDrafting | None) -> None:
        """Takes a message. Raises ServiceError, and _Flood."""
        began = time.thread_time()
        kind = message.WhichOneof("message")
        try:
            size = message.ByteSize() * (_UNASKED if drafting is None else 1)
            self._flood_limit.spend_proposals([message.proposal] if kind == "proposal" else (), size)
        except ServiceError as error:
            raise _Flood(error) from error
        if kind == "proposal":
            self._take(request, message.proposal, drafting)
        elif kind == "start":
            raise _start_expected("a second start on the stream")
        else:  # a kind of message that only newer callers know
            log.debug("unknown message ignored", bytes=message.ByteSize())
        if drafting is not None:
            seconds = min(time.thread_time() - began, _LONGEST) + self._stream.take_seconds()
            try:
                refusal = drafting.charge(seconds)
            except ServiceError as error:
                raise _Flood(error) from error
            if refusal is not None:
                self._refuse(refusal)

    def _take(self, request: RunningRequest, message: ProposalMessage, drafting: CallerDrafting | None) -> None:
        if self._refused is not None:  # the caller could not know yet
            request.speculation.stale(len(message.token_ids))
            return
        if drafting is None:
            self._refuse_unasked()
            return
        entries = max(len(message.token_ids), len(message.parent_ids), len(message.log_probs))
        most = self._verifier.model.limits.max_tree_nodes
        if entries > most:  # not worth copying for the engine, which would refuse it
            description = f"has {entries} nodes, but the request has credit for {most}"
            self._refuse_proposal(ProposalError(ProposalFault.CREDIT_EXCEEDED, "token_ids", description))
            return
        proposal = Proposal(
            committed_length=message.committed_length,
            first_node_id=message.first_node_id,
            token_ids=list(message.token_ids),
            parent_ids=list(message.parent_ids),
            log_probs=list(message.log_probs),
            last=message.last,
        )
        try:
            if not drafting.propose(proposal):
                request.speculation.stale(len(proposal.token_ids))
        except TooManyCommands as error:
            self._refuse(at_capacity(f"the verifier is too far behind the caller's messages: {error}", _RETRY_SECONDS))

    def _refuse_proposal(self, error: ProposalError) -> None:
        self._refuse(proposal_error(error))

    def _refuse_unasked(self) -> None:
        """Refuses a proposal for a request that asked for no speculation or is complete."""
        self._refuse_proposal(
            ProposalError(ProposalFault.CREDIT_EXCEEDED, "token_ids", "the request was opened without credit for nodes")
        )

    def _refuse(self, error: ServiceError) -> None:
        if self._refused is None:
            log.warning("proposal refused", request_id=self._request_id, drafter=CALLER, reason=error.message)
            self._refused = error

    # Messages to the caller.

    async def _tell(self, request: RunningRequest) -> None:
        """Sends the request's events, each chunk after its verdict."""
        committed_length = len(request.order.spec.tokens)
        async for event in request.events():
            if self._refused is not None and not self._refusal_sent:
                self._refusal_sent = True
                await self._stream.write(pb.VerifyResponse(refused=self._refused.to_status()))
            if event.HasField("chunk"):
                committed_length += len(event.chunk.token_ids)
                verdict = Verdict(
                    committed_length=committed_length,
                    token_ids=event.chunk.token_ids,
                    accepted=sum(source > 0 for source in event.chunk.sources),
                )
                self._flood_limit.told(self._credit)
                await self._stream.write(pb.VerifyResponse(verdict=verdict))
            await self._stream.write(pb.VerifyResponse(event=event))


def _share_of_pool(request: pb.GenerateRequest) -> tuple[bool, pb.GenerateRequest]:
    """Returns whether the caller drafts alone, and the request with the caller's own share of drafters subtracted."""
    drafters = request.speculation.drafters
    if drafters > 1:
        shared = pb.GenerateRequest()
        shared.CopyFrom(request)
        shared.speculation.drafters = drafters - 1
        return False, shared
    return drafters == 1, request


def _check_rule(order: GenerateOrder) -> None:
    if order.acceptance.draws:
        raise invalid_field("speculation.acceptance", "the rejection rule is not available to a caller that drafts")


def _check_tokenizer(own: ModelInfo, sha256: str) -> None:
    if sha256 and sha256 != own.tokenizer_sha256:
        raise failed_precondition(
            ErrorReason.ERROR_REASON_TOKENIZER_MISMATCH,
            f"the caller's tokenizer ({sha256}) is not that of {own.model_id} ({own.tokenizer_sha256})",
            own_model=own.model_id,
            own_tokenizer_sha256=own.tokenizer_sha256,
            other_tokenizer_sha256=sha256,
        )


def _start_expected(message: str) -> ServiceError:
    return failed_precondition(ErrorReason.ERROR_REASON_HANDSHAKE_EXPECTED, message)
