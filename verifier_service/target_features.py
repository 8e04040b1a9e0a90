"""Features of the target's hidden states, for drafters on other machines."""

from __future__ import annotations

import asyncio

import torch

from draftwire.v1.features_pb2 import FeatureMap as FeatureMapMessage
from draftwire_core.engine.engine.feature_streams import MOST_KINDS, FeatureKind, TooManyKinds
from draftwire_core.engine.model.features.feature_codec import FLOATS
from draftwire_core.engine.model.features.feature_map import FeatureMap, FeatureShape
from draftwire_core.engine.model.features.taps import SlotStates, Tap
from draftwire_core.engine.model.linear.drafter_linear import pack_linears
from draftwire_core.pool.drafter.features import (
    FeatureIntake,
    FetchWeights,
    check_features,
    feature_refusal,
    refusing_for_memory,
)
from draftwire_core.runtime.errors import at_capacity, shutting_down
from draftwire_core.runtime.process.logs import get_logger
from draftwire_core.runtime.threads.engine_thread import ThreadEnded
from verifier_service.step_loop import StepLoop

log = get_logger(__name__)

_RETRY_SECONDS = 60.0
"""Time after which a drafter of one kind too many may be tried again: drafters stay long."""


class TargetFeatures(FeatureIntake):
    """Taps the target for drafters that announce what they read."""

    def __init__(self, steps: StepLoop, fetch: FetchWeights):
        """fetch: fetches the weights of a drafter's map."""
        self._steps = steps
        self._target = steps.engine.model
        self._fetch = fetch
        self._fetching = 0
        """Maps whose weights are being fetched."""

    async def prepare(self, source: str, address: str, features: FeatureMapMessage) -> None:
        """Begins to make the features that the drafter at an address reads. Raises ServiceError, StreamBroken."""
        kind, shape = check_features(features, self._target)
        try:
            with refusing_for_memory():
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
        if self._fetching >= MOST_KINDS:
            raise TooManyKinds(
                f"weights of {MOST_KINDS} kinds of features are being fetched; at most {MOST_KINDS} may be"
            )
        dtype = FLOATS[features.weights_dtype]
        self._fetching += 1
        try:
            weights = await self._fetch(address, features.weights_sha256, shape.weights * dtype.itemsize)
            tap = await asyncio.to_thread(self._tap, kind, shape, weights, dtype)
        except ValueError as error:
            raise feature_refusal("weights_sha256", str(error)) from error
        finally:
            self._fetching -= 1
        await self._steps.add_features(source, kind, features.dtype, tap, window=features.window)
        log.info("features enabled", source=source, layers=list(kind.layers), width=shape.width, dtype=features.dtype)

    def sent(self, source: str, count: int | None = None) -> None:
        """Lets the engine hand out more features for a drafter."""
        self._steps.sent_features(source, count)

    def _tap(self, kind: FeatureKind, shape: FeatureShape, weights: bytearray, weights_dtype: torch.dtype) -> Tap:
        device, dtype = self._target.device, self._target.dtype
        mapping = FeatureMap.of(shape, weights, weights_dtype).to(device=device, dtype=dtype)
        pack_linears(mapping)
        return Tap(kind.layers, mapping, SlotStates(self._target.pool.capacity, shape.width, dtype))
