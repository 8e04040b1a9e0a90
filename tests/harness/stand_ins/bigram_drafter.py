"""A small drafter that keeps all rules of the protocol, on a real gRPC server; tests derive from it to break one.

It guesses that a token is followed by what followed it last time, and drafts one chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
from grpc_status import rpc_status

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1 import drafter_service_pb2_grpc as pb_grpc
from draftwire.v1.model_info_pb2 import Limits, ModelInfo, PeerInfo
from draftwire.v1.proposal_pb2 import DraftDistribution, Proposal, ProposalBatch
from draftwire.v1.verdict_pb2 import Verdict
from tests.harness.stand_ins.fake_verifier import rich_status

TOKENIZER = "5" * 64
VOCABULARY = 200
_LONGEST = 4
_WRONG = grpc.StatusCode.INVALID_ARGUMENT


class Refused(Exception):
    """An error of one sequence."""

    def __init__(self, code: grpc.StatusCode, reason: str, *fields: str) -> None:
        super().__init__(reason)
        self.status = rich_status(code, "refused", reason, fields)


class StreamRefused(Exception):
    """An error that ends the stream."""

    def __init__(self, reason: str, code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION) -> None:
        super().__init__(reason)
        self.status = rich_status(code, "refused", reason)


@dataclass
class Opened:
    """An opening, and once it is complete the sequence."""

    sequence_id: int
    epoch: int
    length: int
    max_length: int
    credit: int
    draws: bool
    vocab_size: int
    tokens: list[int] = field(default_factory=list)
    chain: list[tuple[int, int]] = field(default_factory=list)
    """Ids and tokens of the nodes below the root."""
    next_id: int = 1

    @property
    def complete(self) -> bool:
        return len(self.tokens) == self.length

    def follow(self, tokens: Sequence[int]) -> None:
        """Re-roots the chain."""
        for token in tokens:
            self.chain = self.chain[1:] if self.chain and self.chain[0][1] == token else []
            self.tokens.append(token)

    def guess(self) -> list[int]:
        """Returns the tokens to add to the chain."""
        context = [*self.tokens, *(token for _, token in self.chain)]
        room = min(self.credit - len(self.chain), self.max_length - len(context), _LONGEST - len(self.chain))
        found: list[int] = []
        for _ in range(room):
            place = next((i for i in range(len(context) - 2, -1, -1) if context[i] == context[-1]), None)
            if place is None or context[place + 1] >= self.vocab_size:
                break
            context.append(context[place + 1])
            found.append(context[-1])
        return found

    def proposal(self, tokens: Sequence[int]) -> Proposal:
        """Adds tokens to the chain, and returns them as a proposal."""
        first, self.next_id = self.next_id, self.next_id + len(tokens)
        ids = range(first, self.next_id)
        above = self.chain[-1][0] if self.chain else 0
        parents = [above, *ids][: len(tokens)]
        self.chain += list(zip(ids, tokens, strict=True))
        return Proposal(
            sequence_id=self.sequence_id,
            epoch=self.epoch,
            committed_length=len(self.tokens),
            first_node_id=first,
            token_ids=tokens,
            parent_ids=parents,
            log_probs=[-0.25] * len(tokens),
            distributions=[
                DraftDistribution(parent_id=parent, token_ids=[token], probabilities=[1.0])
                for parent, token in zip(parents, tokens, strict=True)
                if self.draws
            ],
        )


class Conversation:
    """One Draft stream."""

    def __init__(self, drafter: BigramDrafter) -> None:
        self.drafter = drafter
        self.vocab_size = VOCABULARY
        self.opened: dict[int, Opened] = {}
        """Openings, complete or not, by sequence."""
        self.failed: dict[int, int] = {}
        """Failed epochs by sequence."""

    def greet(self, hello: PeerInfo) -> list[pb.DraftResponse]:
        own = self.drafter.hello
        if hello.min_protocol_revision > own.protocol_revision:
            raise StreamRefused("PROTOCOL_MISMATCH")
        if hello.model.tokenizer_sha256 not in ("", own.model.tokenizer_sha256):
            raise StreamRefused("TOKENIZER_MISMATCH")
        self.vocab_size = min(hello.model.vocab_size or VOCABULARY, VOCABULARY)
        return [pb.DraftResponse(hello=own)]

    def first(self, request: pb.DraftRequest) -> list[pb.DraftResponse]:
        if request.WhichOneof("message") != "hello":
            raise StreamRefused("HANDSHAKE_EXPECTED")
        return self.greet(request.hello)

    def answer(self, request: pb.DraftRequest) -> list[pb.DraftResponse]:
        kind = request.WhichOneof("message")
        if kind == "hello":
            return self.second_hello(request.hello)
        handler = getattr(self, f"on_{kind}", None)
        return self.on_unknown() if handler is None else handler(getattr(request, str(kind)))

    def second_hello(self, hello: PeerInfo) -> list[pb.DraftResponse]:
        raise StreamRefused("HANDSHAKE_EXPECTED")

    def on_unknown(self) -> list[pb.DraftResponse]:
        return []

    def on_open(self, chunk: pb.OpenSequence) -> list[pb.DraftResponse]:
        if self.is_stale(chunk):
            return []
        try:
            known = self.opened.get(chunk.sequence_id)
            if known is None or chunk.epoch > known.epoch:
                known = self.begin(chunk)
            self.add(known, chunk)
        except Refused as refused:
            return self.fail(chunk.sequence_id, chunk.epoch, refused)
        return self.begin_drafting(known) if known.complete else []

    def is_stale(self, chunk: pb.OpenSequence) -> bool:
        known = self.opened.get(chunk.sequence_id)
        if known is not None and (chunk.epoch < known.epoch or (chunk.epoch == known.epoch and known.complete)):
            return True
        return chunk.epoch <= self.failed.get(chunk.sequence_id, -1)

    def begin(self, chunk: pb.OpenSequence) -> Opened:
        limits = self.drafter.hello.limits
        if chunk.committed_length < 1:
            raise Refused(_WRONG, "INVALID_FIELD", "committed_length")
        if 0 < limits.max_sequence_tokens < chunk.committed_length:
            raise Refused(_WRONG, "CONTEXT_EXCEEDED", "committed_length")
        if chunk.max_length < chunk.committed_length:
            raise Refused(_WRONG, "INVALID_FIELD", "max_length")
        if chunk.max_tree_nodes < 1:
            raise Refused(_WRONG, "INVALID_FIELD", "max_tree_nodes")
        if not chunk.sampling.HasField("seed"):
            raise Refused(_WRONG, "INVALID_FIELD", "sampling.seed")
        self.opened.pop(chunk.sequence_id, None)
        if 0 < limits.max_sequences <= len(self.opened):
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "AT_CAPACITY")
        self.opened[chunk.sequence_id] = begun = Opened(
            chunk.sequence_id,
            chunk.epoch,
            chunk.committed_length,
            chunk.max_length,
            min(chunk.max_tree_nodes, limits.max_tree_nodes or chunk.max_tree_nodes),
            bool(chunk.acceptance),
            self.vocab_size,
        )
        return begun

    def add(self, known: Opened, chunk: pb.OpenSequence) -> None:
        if chunk.offset != len(known.tokens):
            raise Refused(_WRONG, "INVALID_FIELD", "offset")
        if len(known.tokens) + len(chunk.token_ids) > known.length:
            raise Refused(_WRONG, "INVALID_FIELD", "token_ids")
        if max(chunk.token_ids) >= VOCABULARY:
            raise Refused(_WRONG, "TOKEN_OUT_OF_RANGE", "token_ids[0]")
        known.tokens += chunk.token_ids

    def begin_drafting(self, known: Opened) -> list[pb.DraftResponse]:
        opened = pb.SequenceOpened(sequence_id=known.sequence_id, epoch=known.epoch)
        return [pb.DraftResponse(opened=opened), *self.draft([known])]

    def on_verdicts(self, batch: Any) -> list[pb.DraftResponse]:
        answers: list[pb.DraftResponse] = []
        followed = []
        for verdict in batch.verdicts:
            try:
                if not self.is_late(verdict):
                    followed.append(self.commit(verdict))
            except Refused as refused:
                answers += self.fail(verdict.sequence_id, verdict.epoch, refused)
        asked = batch.max_tree_nodes if batch.HasField("max_tree_nodes") else None
        return answers + self.draft(followed, asked)

    def is_late(self, verdict: Verdict) -> bool:
        """Whether a verdict is of an older epoch or of an opening that has failed."""
        known = self.opened.get(verdict.sequence_id)
        older = known is not None and verdict.epoch < known.epoch
        return older or verdict.epoch <= self.failed.get(verdict.sequence_id, -1)

    def commit(self, verdict: Verdict) -> Opened:
        known = self.opened.get(verdict.sequence_id)
        if known is None or known.epoch != verdict.epoch or not known.complete:
            raise Refused(grpc.StatusCode.NOT_FOUND, "UNKNOWN_SEQUENCE")
        if len(known.tokens) + len(verdict.token_ids) != verdict.committed_length:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, "OUT_OF_SYNC")
        if verdict.committed_length > known.max_length:
            raise Refused(_WRONG, "INVALID_FIELD", "committed_length")
        self.follow(known, verdict)
        known.length = len(known.tokens)
        return known

    def follow(self, known: Opened, verdict: Verdict) -> None:
        known.follow(verdict.token_ids)

    def on_close(self, message: pb.CloseSequences) -> list[pb.DraftResponse]:
        for sequence_id in message.sequence_ids:
            self.opened.pop(sequence_id, None)
            self.failed.pop(sequence_id, None)
        return []

    def on_sequence_error(self, error: pb.SequenceError) -> list[pb.DraftResponse]:
        self.opened.pop(error.sequence_id, None)
        return []

    def on_ping(self, ping: pb.Ping) -> list[pb.DraftResponse]:
        return [pb.DraftResponse(pong=pb.Pong(number=ping.number))]

    def on_step_begun(self, message: pb.StepBegun) -> list[pb.DraftResponse]:
        return []  # it drafts one step for a verdict, so it has nothing to gather

    def draft(self, sequences: Sequence[Opened], asked: int | None = None) -> list[pb.DraftResponse]:
        """Drafts one step for some sequences."""
        proposals = []
        for known in sequences:
            tokens = known.guess()[: None if asked is None else max(0, asked - len(known.chain))]
            if tokens:
                proposals.append(known.proposal(tokens))
        return self.batch(proposals) if proposals else []

    def batch(self, proposals: list[Proposal]) -> list[pb.DraftResponse]:
        return [pb.DraftResponse(proposals=ProposalBatch(proposals=proposals, step_seconds=1e-5))]

    def fail(self, sequence_id: int, epoch: int, refused: Refused) -> list[pb.DraftResponse]:
        self.opened.pop(sequence_id, None)
        self.failed[sequence_id] = epoch
        error = pb.SequenceError(sequence_id=sequence_id, epoch=epoch, status=refused.status)
        return [pb.DraftResponse(sequence_error=error)]

    def end(self) -> None:
        """The verifier has ended its side."""


class BigramDrafter(pb_grpc.DrafterServiceServicer):
    """Serves on a free port while it is entered."""

    def __init__(self, conversation: type[Conversation] = Conversation, **hello: Any) -> None:
        """hello: fields of its hello that are to differ."""
        fields = {
            "protocol_revision": 1,
            "min_protocol_revision": 1,
            "build": "bigrams",
            "capabilities": ["ping", "gathering", "distributions"],
            "model": ModelInfo(model_id="bigrams", vocab_size=VOCABULARY, tokenizer_sha256=TOKENIZER),
            "limits": Limits(max_sequences=6, max_tree_nodes=8, max_sequence_tokens=256),
        } | hello
        self.hello = PeerInfo(**fields)
        self.address = ""
        self._conversation = conversation

    def __enter__(self) -> Self:
        self._server = grpc.server(ThreadPoolExecutor(8))
        pb_grpc.add_DrafterServiceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def GetModelInfo(self, request: Any, context: Any) -> pb.DrafterServiceGetModelInfoResponse:
        return pb.DrafterServiceGetModelInfoResponse(info=self.hello)

    def Draft(self, requests: Iterator[pb.DraftRequest], context: Any) -> Iterator[pb.DraftResponse]:
        conversation = self._conversation(self)
        try:
            yield from conversation.first(next(requests))
            for request in requests:
                yield from conversation.answer(request)
            conversation.end()
        except StreamRefused as refused:
            context.abort_with_status(rpc_status.to_status(refused.status))
