"""A drafter service that makes work: it proposes random tokens, and more according to its kind."""

from __future__ import annotations

import hashlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import grpc
import numpy as np

from benchmarks.faults.fuzz_messages import hello
from benchmarks.faults.raw_drafter import RawDrafter
from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.features_pb2 import FeatureMap, GetFeatureWeightsResponse
from draftwire.v1.model_info_pb2 import Limits, ModelInfo
from draftwire.v1.verdict_pb2 import Verdict
from tests.harness.stand_ins.scripted_drafter import Opening, batch

_CHAIN = 8
"""Random tokens that it proposes at a time."""
_ECHOES = 63
"""Proposals of committed tokens after each verdict."""
_FOREIGN = 40
_PONGS = 300
_MAP_LAYERS, _MAP_WIDTH, _MAP_WEIGHTS = 16, 4, 16
"""Limits of a verifier on a map: layers, width and weights, the last two in hidden sizes and their squares."""
_LOG_PROB = -0.01
"""Log-probability that it reports for each token: near certainty."""


@dataclass(slots=True, kw_only=True)
class _Opening(Opening):
    begun: int
    """Number of committed tokens at the opening itself."""

    def batch(self, tokens: list[int], length: int) -> pb.DraftResponse:
        """Proposes a chain after `length` committed tokens."""
        return batch(self.proposal(tokens, committed_length=length, log_probs=[_LOG_PROB] * len(tokens)))


@dataclass
class HostileMap:
    """The largest feature map that a verifier takes: of as many layers and as wide, of the smallest weights."""

    layers: int
    """Layers of the target."""
    hidden_size: int
    number: int = 0
    """Maps with other numbers have other weights, so that none is shared."""

    @cached_property
    def message(self) -> FeatureMap:
        """The map that the drafter announces."""
        count = min(_MAP_LAYERS, self.layers + 1)
        return FeatureMap(
            layers=range(count),
            hidden_size=self.hidden_size,
            width=min(_MAP_WIDTH, _MAP_WEIGHTS // count) * self.hidden_size,
            dtype="float32",
            norm_states=True,
            norm_features=True,
            weights_dtype="float32",
            weights_sha256=hashlib.sha256(self.weights).hexdigest(),
        )

    @cached_property
    def weights(self) -> bytes:
        """All weights: half of them denormal, the others as small as is permitted."""
        count = min(_MAP_LAYERS, self.layers + 1)
        read, width = count * self.hidden_size, min(_MAP_WIDTH, _MAP_WEIGHTS // count) * self.hidden_size
        values = np.full(read + read * width + width, 1e-12, dtype="<f4")
        values[::2] = 1e-40
        values[-1] = 1 + self.number
        return values.tobytes()


class HostileDrafter(RawDrafter):
    """A drafter that serves Draft at `address`."""

    def __init__(self, kind: str, vocab_size: int, features: HostileMap) -> None:
        """kind: one of KINDS. features: the map of those kinds that announce one."""
        self._kind = kind
        self._map = features if kind.startswith("map") else None
        self._vocab_size = vocab_size
        self._rng = random.Random(kind)
        self._models = 0
        self._openings = 0
        super().__init__(self._draft, self._send_weights)

    async def _draft(self, requests: Any, context: Any) -> None:
        """Runs one conversation."""
        openings: dict[int, _Opening] = {}
        greeting = hello(self._vocab_size)
        greeting.limits.CopyFrom(Limits(max_sequences=64, max_tree_nodes=64))
        greeting.model.model_id = f"model {self._models}"
        if self._map is not None:
            greeting.capabilities.append("features")
            greeting.features.CopyFrom(self._map.message)
        with suppress(grpc.aio.AioRpcError, grpc.aio.UsageError):
            await context.write(pb.DraftResponse(hello=greeting).SerializeToString())
            async for data in requests:
                for answer in self._answers(pb.DraftRequest.FromString(data), openings):
                    await context.write(answer.SerializeToString())

    async def _send_weights(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        assert self._map is not None, "only maps have weights"
        weights = self._map.weights
        for start in range(0, len(weights), 1 << 20):
            yield GetFeatureWeightsResponse(values=weights[start : start + (1 << 20)]).SerializeToString()

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
        if self._kind == "map-silent":
            return
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

    def _nothing(self, opening: _Opening, verdict: Verdict) -> Iterator[pb.DraftResponse]:
        yield from ()

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
    "map": HostileDrafter._wrong,
    "map-silent": HostileDrafter._nothing,
}
"""Answers to a verdict, by kind."""
