"""A drafter service that makes work: it proposes random tokens, and more according to its kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc

from benchmarks.faults.fuzz_messages import hello
from benchmarks.faults.raw_drafter import RawDrafter
from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire.v1.verdict_pb2 import Verdict
from tests.harness.stand_ins.scripted_drafter import Opening, batch

_CHAIN = 8
"""Random tokens that it proposes at a time."""
_ECHOES = 63
"""Proposals of committed tokens after each verdict."""
_FOREIGN = 40
_PONGS = 300
_LOG_PROB = -0.01
"""Log-probability that it reports for each token: near certainty."""


@dataclass(slots=True, kw_only=True)
class _Opening(Opening):
    begun: int
    """Number of committed tokens at the opening itself."""

    def batch(self, tokens: list[int], length: int) -> pb.DraftResponse:
        """Proposes a chain after `length` committed tokens."""
        return batch(self.proposal(tokens, committed_length=length, log_probs=[_LOG_PROB] * len(tokens)))


class HostileDrafter(RawDrafter):
    """A drafter that serves Draft at `address`. kind: one of KINDS."""

    def __init__(self, kind: str, vocab_size: int) -> None:
        self._kind = kind
        self._vocab_size = vocab_size
        self._rng = random.Random(kind)
        self._models = 0
        self._openings = 0
        super().__init__(self._draft)

    async def _draft(self, requests: Any, context: Any) -> None:
        """Runs one conversation."""
        openings: dict[int, _Opening] = {}
        greeting = hello(self._vocab_size)
        greeting.limits.CopyFrom(Limits(max_sequences=64, max_tree_nodes=64))
        greeting.model.model_id = f"model {self._models}"
        with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
            await context.write(pb.DraftResponse(hello=greeting).SerializeToString())
            async for data in requests:
                for answer in self._answers(pb.DraftRequest.FromString(data), openings):
                    await context.write(answer.SerializeToString())

    def _answers(self, message: pb.DraftRequest, openings: dict[int, _Opening]) -> Iterator[pb.DraftResponse]:
        kind = message.WhichOneof("message")
        if kind == "open":
            yield from self._open(message.open, openings)
        elif kind == "verdicts":
            for verdict in message.verdicts.verdicts:
                opening = openings.get(verdict.sequence_id)
                if opening is not None and opening.epoch == verdict.epoch:
                    opening.tokens += verdict.token_ids
                    yield from self._follow(opening, verdict)
        elif kind == "close":
            for sequence_id in message.close.sequence_ids:
                openings.pop(sequence_id, None)
        elif kind == "sequence_error":
            openings.pop(message.sequence_error.sequence_id, None)
        elif kind == "ping":
            yield pb.DraftResponse(pong=pb.Pong(number=message.ping.number))

    def _open(self, message: pb.OpenSequence, openings: dict[int, _Opening]) -> Iterator[pb.DraftResponse]:
        opening = openings.get(message.sequence_id)
        if opening is None or not message.offset:
            opening = _Opening(message.sequence_id, message.epoch, [], begun=message.committed_length)
            openings[message.sequence_id] = opening
        opening.tokens += message.token_ids
        if len(opening.tokens) < message.committed_length:
            return
        self._openings += 1
        yield pb.DraftResponse(opened=pb.SequenceOpened(sequence_id=opening.sequence_id, epoch=opening.epoch))
        if not self._kind.startswith("echo"):  # whose proposals all build on earlier committed tokens
            yield self._guess(opening)
        if self._kind == "chameleon" and self._openings % 2 == 0:
            yield self._replaced()

    def _follow(self, opening: _Opening, verdict: Verdict) -> Iterator[pb.DraftResponse]:
        yield from KINDS[self._kind](self, opening, verdict)

    def _guess(self, opening: _Opening) -> pb.DraftResponse:
        tokens = [self._rng.randrange(self._vocab_size) for _ in range(_CHAIN)]
        return opening.batch(tokens, len(opening.tokens))

    def _replaced(self) -> pb.DraftResponse:
        self._models += 1
        return pb.DraftResponse(replaced=pb.ModelReplaced(model=ModelInfo(model_id=f"model {self._models}")))

    # Behaviour of each kind after a verdict

    def _wrong(self, opening: _Opening, verdict: Verdict) -> Iterator[pb.DraftResponse]:
        yield self._guess(opening)

    def _restless(self, opening: _Opening, verdict: Verdict) -> Iterator[pb.DraftResponse]:
        yield self._guess(opening)
        yield self._replaced()

    def _echo(self, opening: _Opening, verdict: Verdict) -> Iterator[pb.DraftResponse]:
        for _ in range(_ECHOES):
            yield opening.batch([opening.tokens[opening.begun]], opening.begun)

    def _echo_last(self, opening: _Opening, verdict: Verdict) -> Iterator[pb.DraftResponse]:
        known = len(opening.tokens) - len(verdict.token_ids)
        for _ in range(_ECHOES):
            yield opening.batch([opening.tokens[known]], known)

    def _foreign(self, opening: _Opening, verdict: Verdict) -> Iterator[pb.DraftResponse]:
        yield self._guess(opening)
        for number in range(_FOREIGN):
            yield _Opening(opening.sequence_id + 1000 + number, 0, [0], begun=1).batch([1], 1)

    def _pongs(self, opening: _Opening, verdict: Verdict) -> Iterator[pb.DraftResponse]:
        yield self._guess(opening)
        for number in range(_PONGS):
            yield pb.DraftResponse(pong=pb.Pong(number=number))


KINDS: dict[str, Callable[[HostileDrafter, _Opening, Verdict], Iterator[pb.DraftResponse]]] = {
    "wrong": HostileDrafter._wrong,
    "chameleon": HostileDrafter._wrong,
    "replaced": HostileDrafter._restless,
    "echo": HostileDrafter._echo,
    "echo-last": HostileDrafter._echo_last,
    "foreign": HostileDrafter._foreign,
    "pongs": HostileDrafter._pongs,
}
"""Answers to a verdict, by kind."""
