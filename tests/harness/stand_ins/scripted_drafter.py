"""A drafter whose behaviour is scripted by a test, right or wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.features_pb2 import TokenFeatures
from draftwire.v1.model_info_pb2 import Limits, ModelInfo, PeerInfo
from draftwire.v1.proposal_pb2 import Proposal, ProposalBatch
from draftwire.v1.verdict_pb2 import Verdict
from draftwire_core.runtime.rpc.handshake import CAPABILITY_GATHERING
from draftwire_core.runtime.rpc.message_stream import MessageStream

Stream = MessageStream[Any, Any]


def hello(**changes: Any) -> pb.DraftResponse:
    """Returns the handshake of a drafter that is compatible with every verifier."""
    fields = {
        "protocol_revision": 1,
        "min_protocol_revision": 1,
        "build": "scripted",
        "model": ModelInfo(model_id="scripted", vocab_size=200),
        "limits": Limits(max_sequences=64, max_tree_nodes=64, max_message_bytes=1 << 20, max_sequence_tokens=256),
    } | changes
    return pb.DraftResponse(hello=PeerInfo(**fields))


@dataclass
class Opening:
    """A sequence as the drafter knows it."""

    sequence_id: int
    epoch: int
    tokens: list[int]
    next_id: int = 1

    def proposal(self, token_ids: Sequence[int], **changes: Any) -> Proposal:
        """Proposes a chain below the last committed token, with the faults that a test asks for."""
        first = self.next_id
        self.next_id += len(token_ids)
        fields = {
            "sequence_id": self.sequence_id,
            "epoch": self.epoch,
            "committed_length": len(self.tokens),
            "first_node_id": first,
            "token_ids": token_ids,
            "parent_ids": [0, *range(first, first + len(token_ids) - 1)][: len(token_ids)],
        } | changes
        return Proposal(**fields)


def batch(*proposals: Proposal, step_seconds: float = 0.001) -> pb.DraftResponse:
    return pb.DraftResponse(proposals=ProposalBatch(proposals=proposals, step_seconds=step_seconds))


Answer = Callable[[Opening], Sequence[pb.DraftResponse]]


@dataclass
class ScriptedDrafter:
    """Accepts every sequence, and sends `answer(opening)` then and after every verdict."""

    failed: ClassVar[list[AssertionError]] = []
    """Faults of the verifier, which the transport would report only to the verifier; conftest checks them."""
    answer: Answer = lambda opening: ()
    greeting: pb.DraftResponse = field(default_factory=hello)
    says_opened: bool = True
    open: dict[int, Opening] = field(default_factory=dict)
    opened: list[pb.OpenSequence] = field(default_factory=list)
    """Every OpenSequence it received."""
    errors: list[pb.SequenceError] = field(default_factory=list)
    features: list[TokenFeatures] = field(default_factory=list)
    """All features that it received; only a drafter that announces some accepts them."""
    verdicts: int = 0
    lengths: list[int] = field(default_factory=list)
    """Committed lengths that it received."""
    credits: list[int] = field(default_factory=list)
    """Credit in each batch of verdicts; 0 keeps the credit of the opening."""
    begun: list[float] = field(default_factory=list)
    """Seconds of each StepBegun; only a drafter with the capability accepts it."""
    hellos: list[PeerInfo] = field(default_factory=list)
    ended: int = 0
    """Number of streams that the verifier has ended."""
    alive: bool = True
    """Whether it answers pings and everything else."""
    pings: int = 0
    streams: dict[Stream, asyncio.Lock] = field(default_factory=dict)

    async def say(self, response: pb.DraftResponse) -> None:
        """Sends every verifier an unsolicited message."""
        for stream, writing in self.streams.items():
            async with writing:
                await stream.write(response)

    async def converse(self, stream: Stream) -> None:
        first = await stream.read()
        assert first is not None
        self.hellos.append(first.hello)
        await stream.write(self.greeting)
        writing = self.streams[stream] = asyncio.Lock()
        opened: dict[int, Opening] = {}  # on this stream; a verifier that reconnects opens its sequences again
        try:
            async for message in stream:
                for response in self._answers(message, opened) if self.alive else ():
                    async with writing:
                        await stream.write(response)
        except AssertionError as error:
            self.failed.append(error)
            raise
        finally:
            del self.streams[stream]
            if not self.streams:
                self.open.clear()
            self.ended += 1

    def _answers(self, message: pb.DraftRequest, opened: dict[int, Opening]) -> list[pb.DraftResponse]:
        kind = message.WhichOneof("message")
        answers: list[pb.DraftResponse] = []
        if kind == "open":
            self.opened.append(message.open)
            opening = Opening(message.open.sequence_id, message.open.epoch, list(message.open.token_ids))
            assert len(opening.tokens) == message.open.committed_length
            self.open[opening.sequence_id] = opened[opening.sequence_id] = opening
            if self.says_opened:
                answers.append(
                    pb.DraftResponse(opened=pb.SequenceOpened(sequence_id=opening.sequence_id, epoch=opening.epoch))
                )
            answers += self.answer(opening)
        elif kind == "verdicts":
            self.credits.append(message.verdicts.max_tree_nodes)
            for verdict in message.verdicts.verdicts:
                answers += self._follow(verdict, opened.get(verdict.sequence_id))
        elif kind == "close":
            for sequence_id in message.close.sequence_ids:
                self._close(sequence_id, opened)
        elif kind == "features" and self.greeting.hello.HasField("features"):
            self.features += message.features.features
        elif kind == "step_begun" and CAPABILITY_GATHERING in self.greeting.hello.capabilities:
            self.begun.append(message.step_begun.seconds)
        elif kind == "ping":
            self.pings += 1
            answers.append(pb.DraftResponse(pong=pb.Pong(number=message.ping.number)))
        elif kind == "sequence_error":
            self.errors.append(message.sequence_error)
            self._close(message.sequence_error.sequence_id, opened)
        else:
            raise AssertionError(f"the verifier sent {kind}")
        return answers

    def _close(self, sequence_id: int, opened: dict[int, Opening]) -> None:
        opening = opened.pop(sequence_id, None)
        if opening is not None and self.open.get(sequence_id) is opening:
            del self.open[sequence_id]

    def _follow(self, verdict: Verdict, opening: Opening | None) -> Sequence[pb.DraftResponse]:
        if opening is None:
            return ()
        assert verdict.epoch == opening.epoch, "a verdict of another opening"
        opening.tokens += verdict.token_ids
        assert len(opening.tokens) == verdict.committed_length, "a verdict that does not continue the sequence"
        self.verdicts += 1
        self.lengths.append(verdict.committed_length)
        return self.answer(opening)


def right(text: Sequence[int], count: int = 3) -> Answer:
    """Proposes the tokens that the target will generate."""

    def answer(opening: Opening) -> Sequence[pb.DraftResponse]:
        known = len(opening.tokens)
        assert list(text[:known]) == opening.tokens
        following = list(text[known : known + count])
        return [batch(opening.proposal(following))] if following else ()

    return answer
