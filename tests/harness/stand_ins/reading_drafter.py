"""A small drafter that reads features and keeps all rules about them, and some that each break one.

Its guesses are those of `bigram_drafter`: what the features say changes none of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import grpc
from grpc_status import rpc_status

from draftwire.v1 import drafter_service_pb2 as pb
from draftwire.v1.features_pb2 import FeatureBatch, FeatureMap, GetFeatureWeightsResponse, TokenFeatures
from draftwire.v1.model_info_pb2 import PeerInfo
from tests.harness.stand_ins.bigram_drafter import BigramDrafter, Conversation, Opened, Refused, StreamRefused
from tests.harness.stand_ins.fake_verifier import rich_status

Responses = list[pb.DraftResponse]
_WRONG = grpc.StatusCode.INVALID_ARGUMENT
_LAYERS, _HIDDEN, _WIDTH = (0, 1, 2), 8, 6
_BYTES = {"float32": 4 * _WIDTH, "float16": 2 * _WIDTH, "bfloat16": 2 * _WIDTH, "int8": 4 + _WIDTH}
_WEIGHTS = bytes(range(2 * _WIDTH)) + bytes(2 * _WIDTH * len(_LAYERS) * _HIDDEN)


class Reading(Conversation):
    """One Draft stream with features."""

    drafter: ReadingDrafter

    def greet(self, hello: PeerInfo) -> Responses:
        if "features" not in hello.capabilities:
            raise StreamRefused("PROTOCOL_MISMATCH")
        return super().greet(hello)

    def on_features(self, batch: FeatureBatch) -> Responses:
        answers: Responses = []
        for each in batch.features:
            try:
                self.read(each)
            except Refused as refused:
                answers += self.fail(each.sequence_id, each.epoch, refused)
        return answers

    def read(self, features: TokenFeatures) -> None:
        """Takes the features of one sequence."""
        known = self.opened.get(features.sequence_id)
        if self.is_of_an_older_opening(features, known):
            return
        if known is None or known.epoch != features.epoch or not known.complete:
            raise Refused(grpc.StatusCode.NOT_FOUND, "UNKNOWN_SEQUENCE")
        count, rest = divmod(len(features.values), _BYTES[self.drafter.hello.features.dtype])
        if rest or not count:
            raise Refused(_WRONG, "INVALID_FIELD", "features.values")
        if features.first_position + count > known.max_length:
            raise Refused(_WRONG, "INVALID_FIELD", "features.first_position")
        self.take(known, features.first_position, count)

    def is_of_an_older_opening(self, features: TokenFeatures, known: Opened | None) -> bool:
        older = known is not None and features.epoch < known.epoch
        return older or features.epoch <= self.failed.get(features.sequence_id, -1)

    def take(self, known: Opened, first: int, count: int) -> None:
        """Takes features that are right."""
        self.drafter.received += count


class Frugal(Reading):
    def greet(self, hello: PeerInfo) -> Responses:
        return Conversation.greet(self, hello)


class Forward(Reading):
    """Refuses features that it has already."""

    def take(self, known: Opened, first: int, count: int) -> None:
        if first < self.__dict__.get("end", 0):
            raise Refused(_WRONG, "INVALID_FIELD", "features.first_position")
        self.end = first + count


class Late(Reading):
    """Refuses features of tokens that are not committed yet."""

    def take(self, known: Opened, first: int, count: int) -> None:
        if first + count > len(known.tokens):
            raise Refused(_WRONG, "INVALID_FIELD", "features.first_position")


class Complete(Reading):
    """Refuses features that leave a gap."""

    def take(self, known: Opened, first: int, count: int) -> None:
        end = self.__dict__.get("end", 0)
        if first > end:
            raise Refused(_WRONG, "INVALID_FIELD", "features.first_position")
        self.end = max(end, first + count)


class Tolerant(Reading):
    def read(self, features: TokenFeatures) -> None:
        """Takes anything."""


class Vague(Reading):
    def read(self, features: TokenFeatures) -> None:
        try:
            super().read(features)
        except Refused as refused:
            raise Refused(_WRONG, "INVALID_FIELD", "features") from refused


class Sweeping(Reading):
    """Closes all sequences for the bad features of one."""

    def on_features(self, batch: FeatureBatch) -> Responses:
        answers = super().on_features(batch)
        for known in list(self.opened.values()) if answers else ():
            answers += self.fail(known.sequence_id, known.epoch, Refused(_WRONG, "INVALID_FIELD", "features.values"))
        return answers


class Precise(Reading):
    def is_of_an_older_opening(self, features: TokenFeatures, known: Opened | None) -> bool:
        return False


class Offended(Conversation):
    """Reads no features, and ends the stream without saying why."""

    def on_features(self, batch: FeatureBatch) -> Responses:
        raise StreamRefused("INTERNAL", grpc.StatusCode.INTERNAL)


class ReadingDrafter(BigramDrafter):
    """A drafter with the capability `features`."""

    def __init__(self, conversation: type[Conversation] = Reading, *, lavish: bool = False, **fields: Any) -> None:
        """lavish: whether it sends weights for any hash. fields: of its hello, or of its map, that are to differ."""
        kind: dict[str, Any] = {
            "layers": _LAYERS,
            "hidden_size": _HIDDEN,
            "width": _WIDTH,
            "dtype": "float32",
            "norm_features": True,
            "norm_epsilon": 1e-6,
            "weights_dtype": "bfloat16",
            "weights_sha256": hashlib.sha256(_WEIGHTS).hexdigest(),
        }
        kind |= {name: fields.pop(name) for name in list(fields) if name in kind}
        hello = {"capabilities": ["ping", "gathering", "distributions", "features"]} | fields
        super().__init__(conversation, features=FeatureMap(**kind), **hello)
        self.received = 0
        """Features that were taken."""
        self._lavish = lavish

    def GetFeatureWeights(self, request: Any, context: Any) -> Iterator[GetFeatureWeightsResponse]:
        if request.weights_sha256 != self.hello.features.weights_sha256 and not self._lavish:
            refused = rich_status(_WRONG, "refused", "INVALID_FIELD", ("weights_sha256",))
            context.abort_with_status(rpc_status.to_status(refused))
        for begin in range(0, len(_WEIGHTS), 100):
            yield GetFeatureWeightsResponse(values=_WEIGHTS[begin : begin + 100])
