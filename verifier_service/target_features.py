"""Features of the target's hidden states, for drafters on other machines."""

from __future__ import annotations

import asyncio
import math
import re

from drafter_pool.drafter.feature_intake import FeatureIntake
from drafter_pool.drafter.feature_weights import FetchWeights
from draftwire.v1.error_reason_pb2 import ErrorReason
from draftwire.v1.features_pb2 import FeatureMap as FeatureMapMessage
from service_runtime.errors import ServiceError, at_capacity, failed_precondition, shutting_down
from service_runtime.process.engine_thread import ThreadEnded
from service_runtime.process.logs import get_logger
from service_runtime.rpc.handshake import shown
from speculative_engine.engine.feature_streams import FeatureKind, TooManyKinds
from speculative_engine.model.feature_codec import FEATURE_TYPES, FLOATS
from speculative_engine.model.feature_map import FeatureMap, FeatureShape
from speculative_engine.model.linear.packed_linear import PackedLinear, replace_linears
from speculative_engine.model.packed_model import PackedModel
from speculative_engine.model.taps import SlotStates, Tap
from verifier_service.step_loop import StepLoop

log = get_logger(__name__)

_MOST_LAYERS = 64
_WIDEST = 4
"""Most times that a feature may be wider than a hidden state: all slots keep one."""
_RETRY_SECONDS = 60.0
"""Time after which a drafter of one kind too many may be tried again: drafters stay long."""
_SHA256 = re.compile("[0-9a-f]{64}")


class TargetFeatures(FeatureIntake):
    """Taps the target for drafters that announce what they read."""

    def __init__(self, steps: StepLoop, fetch: FetchWeights):
        """fetch: fetches the weights of a drafter's map."""
        self._steps = steps
        self._target = steps.engine.model
        self._fetch = fetch

    async def prepare(self, source: str, address: str, features: FeatureMapMessage) -> None:
        """Begins to make the features that the drafter at an address reads. Raises ServiceError, StreamBroken."""
        kind, shape = check_features(features, self._target)
        try:
            await self._prepare(source, address, features, kind, shape)
        except ThreadEnded as error:
            raise shutting_down() from error
        except TooManyKinds as error:
            raise at_capacity(str(error), _RETRY_SECONDS) from error

    async def _prepare(
        self, source: str, address: str, features: FeatureMapMessage, kind: FeatureKind, shape: FeatureShape
    ) -> None:
        if await self._steps.add_features(source, kind, features.dtype, window=features.window):
            return
        dtype = FLOATS[features.weights_dtype]
        weights = await self._fetch(address, features.weights_sha256, shape.weights * dtype.itemsize)
        tap = await asyncio.to_thread(self._tap, kind, FeatureMap.of(shape, weights, dtype))
        await self._steps.add_features(source, kind, features.dtype, tap, window=features.window)
        log.info("makes features", source=source, layers=list(kind.layers), width=shape.width, dtype=features.dtype)

    def sent(self, source: str, count: int | None = None) -> None:
        """Lets the engine hand out more features for a drafter."""
        self._steps.sent_features(source, count)

    def _tap(self, kind: FeatureKind, mapping: FeatureMap) -> Tap:
        width, dtype = mapping.shape.width, self._target.dtype
        mapping = mapping.to(dtype)
        replace_linears(mapping, PackedLinear)
        return Tap(kind.layers, mapping, SlotStates(self._target.pool.capacity, width, dtype))


def check_features(features: FeatureMapMessage, target: PackedModel) -> tuple[FeatureKind, FeatureShape]:
    """Reads the features that a drafter announces. Raises ServiceError, which names the field, if this target cannot
    make them."""
    made_for = features.target_architectures
    if made_for and target.architecture not in made_for:
        names = ", ".join(map(shown, made_for))
        raise _refusal("target_architectures", f"are {names}, but the target is a {target.architecture}")
    layers = tuple(features.layers)
    if not 1 <= len(layers) <= _MOST_LAYERS or max(layers) > target.layers:
        raise _refusal("layers", f"must be 1 to {_MOST_LAYERS} indices up to {target.layers}, the number of layers")
    if features.hidden_size != target.hidden_size:
        raise _refusal("hidden_size", f"is {features.hidden_size}, but the target's is {target.hidden_size}")
    if features.unmapped and features.width != len(layers) * features.hidden_size:
        raise _refusal("width", f"must be {len(layers) * features.hidden_size} without a map, got {features.width}")
    widest = _WIDEST * target.hidden_size
    if not 1 <= features.width <= widest:
        raise _refusal("width", f"must be 1 to {widest}, got {features.width}")
    for name, value, known in (
        ("dtype", features.dtype, FEATURE_TYPES),
        ("weights_dtype", features.weights_dtype, tuple(FLOATS)),
    ):
        if value not in known:
            raise _refusal(name, f"must be one of {', '.join(known)}, got {shown(value)!r}")
    if features.norm_states and features.norm_each_state:
        raise _refusal("norm_each_state", "excludes norm_states")
    if not (math.isfinite(features.norm_epsilon) and features.norm_epsilon >= 0):
        raise _refusal("norm_epsilon", f"must be a finite number, at least 0, got {features.norm_epsilon:g}")
    if not _SHA256.fullmatch(features.weights_sha256):
        raise _refusal("weights_sha256", "must be a SHA-256 in 64 hexadecimal digits")
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


def _refusal(field: str, why: str) -> ServiceError:
    return failed_precondition(ErrorReason.ERROR_REASON_PROTOCOL_MISMATCH, f"features.{field}: {why}")
