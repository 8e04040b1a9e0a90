"""Features of the target's hidden states for a drafter: the check of those that it announces, the weights of its map,
and the verifier's interface that makes them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import grpc

from draftwire._calls.channel import AsyncChannels
from draftwire._messages.methods import GET_FEATURE_WEIGHTS
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.features_pb2 import FeatureMap, GetFeatureWeightsRequest
from draftwire.v1.features_pb2 import FeatureMap as FeatureMapMessage
from draftwire_core.engine.engine.feature_streams import FeatureKind
from draftwire_core.engine.model.features.feature_codec import FEATURE_TYPES, FLOATS
from draftwire_core.engine.model.features.feature_map import FeatureShape
from draftwire_core.lack_of_memory import lacks_memory
from draftwire_core.runtime.errors import ServiceError, at_capacity, failed_precondition
from draftwire_core.runtime.process.memory import free_locals
from draftwire_core.runtime.rpc.handshake import shown
from draftwire_core.runtime.rpc.message_stream import StreamBroken


class FeatureIntake(Protocol):
    """Makes the features that drafters read. Called in the event loop."""

    async def prepare(self, source: str, address: str, features: FeatureMap) -> None:
        """Begins to make what the drafter at an address reads; returns when passes do. `ProposalSink.forget` ends it.

        Raises ServiceError for features that this target does not have, and StreamBroken if the drafter does not send
        its weights.
        """

    def sent(self, source: str, count: int | None = None) -> None:
        """Reports that `count` bytes of features have been written to a drafter, or dropped; None for all that were
        made for it."""


_MOST_LAYERS = 16
_WIDEST = 4
"""Most times that a feature may be wider than a hidden state: a verifier keeps one for each KV slot."""
_LARGEST = 16
"""Most weights of a map, in matrices of hidden size times hidden size: a verifier holds and multiplies these."""
_MOST_EPSILON = 1.0
"""Largest epsilon of norms. Huge ones make their outputs so small that products with them are denormal, which
processors compute fifty times slower."""
_SHA256 = re.compile("[0-9a-f]{64}")


class FeatureTarget(Protocol):
    """The target that a drafter's features must fit."""

    @property
    def architecture(self) -> str:
        """Class of the model in transformers."""

    @property
    def layers(self) -> int:
        """Number of layers."""

    @property
    def hidden_size(self) -> int:
        """Elements of a hidden state."""


def check_features(features: FeatureMapMessage, target: FeatureTarget) -> tuple[FeatureKind, FeatureShape]:
    """Reads the features that a drafter announces. Raises ServiceError, which names the field, if this target cannot
    make them."""
    made_for = features.target_architectures
    if made_for and target.architecture not in made_for:
        names = ", ".join(map(shown, made_for))
        raise feature_refusal("target_architectures", f"are {names}, but the target is a {target.architecture}")
    layers = tuple(features.layers)
    if not 1 <= len(layers) <= _MOST_LAYERS or max(layers) > target.layers:
        raise feature_refusal(
            "layers", f"must be 1 to {_MOST_LAYERS} indices up to {target.layers}, the number of layers"
        )
    if len(set(layers)) < len(layers):
        raise feature_refusal("layers", "must name each layer once")
    if features.hidden_size != target.hidden_size:
        raise feature_refusal("hidden_size", f"is {features.hidden_size}, but the target's is {target.hidden_size}")
    if features.unmapped and features.width != len(layers) * features.hidden_size:
        raise feature_refusal(
            "width", f"must be {len(layers) * features.hidden_size} without a map, got {features.width}"
        )
    widest = _WIDEST * target.hidden_size
    if not 1 <= features.width <= widest:
        raise feature_refusal("width", f"must be 1 to {widest}, got {features.width}")
    widest = _LARGEST * target.hidden_size // len(layers)
    if not features.unmapped and features.width > widest:
        raise feature_refusal("width", f"must be at most {widest} with {len(layers)} layers, got {features.width}")
    for name, value, known in (
        ("dtype", features.dtype, FEATURE_TYPES),
        ("weights_dtype", features.weights_dtype, tuple(FLOATS)),
    ):
        if value not in known:
            raise feature_refusal(name, f"must be one of {', '.join(known)}, got {shown(value)!r}")
    if features.norm_states and features.norm_each_state:
        raise feature_refusal("norm_each_state", "excludes norm_states")
    if not 0 <= features.norm_epsilon <= _MOST_EPSILON:  # NaN is not
        raise feature_refusal(
            "norm_epsilon", f"must be a finite number from 0 to {_MOST_EPSILON:g}, got {features.norm_epsilon:g}"
        )
    if not _SHA256.fullmatch(features.weights_sha256):
        raise feature_refusal("weights_sha256", "must be a SHA-256 in 64 hexadecimal digits")
    shape = FeatureShape(
        len(layers),
        features.hidden_size,
        features.width,
        norm_states=features.norm_states,
        norm_each_state=features.norm_each_state,
        norm_features=features.norm_features,
        unmapped=features.unmapped,
        epsilon=features.norm_epsilon,
    )
    return FeatureKind(layers, shape, features.weights_sha256), shape


def feature_refusal(field: str, why: str) -> ServiceError:
    """Returns the error for features that a target cannot make. field: of the FeatureMap."""
    return failed_precondition(ErrorReason.ERROR_REASON_PROTOCOL_MISMATCH, f"features.{field}: {why}")


_RETRY_SECONDS = 60.0


@contextmanager
def refusing_for_memory() -> Iterator[None]:
    """Turns a lack of memory, of which a drafter's features may need much, into a ServiceError for that drafter."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not lacks_memory(error):
            raise
        free_locals(error)  # the drafter's last error is kept
        raise at_capacity("there is not enough memory for the features that it reads", _RETRY_SECONDS) from error


FetchWeights = Callable[[str, str, int], Awaitable[bytearray]]
"""Fetches weights: from an address, those with a SHA-256 (hex), so many bytes. Raises StreamBroken."""

_FETCH_SECONDS = 120.0
"""Time that a drafter has to send its weights."""
_MOST_PARTS, _LEAST_PART = 1024, 1 << 14
"""Most parts of the weights, besides one for each of so many bytes. Reading any part, even an empty one, costs the
verifier time in its event loop."""


def fetching_weights(channels: AsyncChannels) -> FetchWeights:
    """Returns a function that fetches weights over channels."""

    async def fetch(address: str, sha256: str, size: int) -> bytearray:
        weights, digest, parts = bytearray(), hashlib.sha256(), _MOST_PARTS + size // _LEAST_PART
        async with channels.open(address) as channel:
            call = channel.unary_stream(
                GET_FEATURE_WEIGHTS.path,
                request_serializer=GET_FEATURE_WEIGHTS.request.SerializeToString,
                response_deserializer=GET_FEATURE_WEIGHTS.response.FromString,
            )(
                GetFeatureWeightsRequest(weights_sha256=sha256),
                timeout=_FETCH_SECONDS,
                metadata=channels.metadata(),
            )
            try:
                async for part in call:
                    if part is None:  # what gRPC makes of bytes that are no message
                        break
                    weights += part.values
                    digest.update(part.values)
                    parts -= 1
                    if len(weights) > size or parts < 0:
                        break
            except grpc.aio.AioRpcError as error:
                raise StreamBroken.of(error.code(), f"the weights of its features: {error.details()}") from error
            finally:
                call.cancel()
        if len(weights) != size or digest.hexdigest() != sha256:
            raise StreamBroken.of(
                grpc.StatusCode.DATA_LOSS,
                f"{address} sent other weights of its features than its handshake says: {len(weights)} bytes instead "
                f"of {size}, another hash, or too many parts",
            )
        return weights

    return fetch
