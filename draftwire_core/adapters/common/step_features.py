"""Features of a host engine's hidden states for drafters: the tapped layers, the maps on the device, and the queues
before the pool's messages."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import torch

from draftwire.v1.features_pb2 import FeatureMap as FeatureMapMessage
from draftwire_core.engine.engine.feature_streams import (
    MOST_BYTES,
    MOST_KINDS,
    MOST_UNSENT,
    MOST_WIDTH,
    FeatureKind,
)
from draftwire_core.engine.engine.step_result import SequenceFeatures
from draftwire_core.engine.model.features.feature_codec import FLOATS, encode, feature_bytes
from draftwire_core.engine.model.features.feature_map import FeatureMap, FeatureShape
from draftwire_core.pool.drafter.features import (
    FeatureIntake,
    FetchWeights,
    check_features,
    feature_refusal,
    refusing_for_memory,
)
from draftwire_core.runtime.errors import at_capacity
from draftwire_core.runtime.process.logs import get_logger


@dataclass(frozen=True, slots=True)
class FeatureTaps:
    """The layers that a host engine's target is tapped before, and the target itself, as a FeatureTarget."""

    tapped: tuple[int, ...]
    """Ascending; the number of layers stands for what leaves the last one."""
    architecture: str
    layers: int
    hidden_size: int
    dtype: torch.dtype
    device: torch.device
    setting: str
    """Name of the setting that chooses the layers, for messages."""


class FeatureRows(NamedTuple):
    """Features of consecutive committed tokens of a request, on the host."""

    first_position: int
    by_kind: Mapping[FeatureKind, torch.Tensor]
    """[tokens, width] each."""


log = get_logger(__name__)

_MOST_QUEUED = 256 << 20
"""Most bytes of features that wait for a drafter; further ones are missing for good."""
_MOST_HELD = 2 << 20
"""Most bytes of features that wait for the end of a drafter's pause; older ones are missing for good."""
_RETRY_SECONDS = 60.0
"""Time after which a drafter of one kind too many may be tried again."""


@dataclass(slots=True)
class _Reader:
    """A drafter that reads features."""

    kind: FeatureKind
    dtype: str
    feature_bytes: int
    window: int
    credit: int = MOST_UNSENT
    """Bytes that may be given to its stream now."""
    queue: deque[SequenceFeatures] = field(default_factory=deque)
    queued: int = 0
    """Bytes in the queue."""
    held: deque[SequenceFeatures] = field(default_factory=deque)
    """Features that follow those in the queue once the drafter is no longer paused."""
    held_bytes: int = 0

    def hold(self, features: SequenceFeatures) -> None:
        """Takes features of a paused drafter, in the place of the oldest ones if they are too many."""
        self.held.append(features)
        self.held_bytes += len(features.values)
        while self.held_bytes > _MOST_HELD and len(self.held) > 1:
            self.held_bytes -= len(self.held.popleft().values)

    def resume(self) -> None:
        """Queues what was held."""
        self.queue += self.held
        self.queued += self.held_bytes
        self.held.clear()
        self.held_bytes = 0


class StepFeatures(FeatureIntake):
    """Makes features of each step's hidden states. A host engine keeps no hidden states, so features that no drafter
    read when they were made are missing for good.

    `compute` is called in the engine's thread, the others in the event loop. The dictionary of maps is replaced, never
    changed, so that neither waits for the other.
    """

    def __init__(self, taps: FeatureTaps, fetch: FetchWeights, on_credit: Callable[[], None]):
        """fetch: fetches the weights of a drafter's map. on_credit: called when a queue can be taken from again."""
        self._taps = taps
        self._fetch = fetch
        self._on_credit = on_credit
        self._maps: dict[FeatureKind, FeatureMap] = {}
        self._readers: dict[str, _Reader] = {}

    def __bool__(self) -> bool:
        """Whether any drafter reads features."""
        return bool(self._maps)

    # The engine's thread

    def compute(self, states: Sequence[torch.Tensor]) -> dict[FeatureKind, torch.Tensor]:
        """Returns the features of rows, [rows, width], by kind, on the device.

        states: those that enter each tapped layer, [rows, hidden size].
        """
        by_layer = dict(zip(self._taps.tapped, states, strict=True))
        return {
            kind: mapping(torch.cat([by_layer[layer] for layer in kind.layers], dim=-1))
            for kind, mapping in self._maps.items()
        }

    # The event loop

    async def prepare(self, source: str, address: str, features: FeatureMapMessage) -> None:
        """Begins to make the features that the drafter at an address reads. Raises ServiceError, StreamBroken."""
        kind, shape = check_features(features, self._taps)
        if not set(kind.layers) <= set(self._taps.tapped):
            read, tapped = (", ".join(map(str, layers)) for layers in (kind.layers, self._taps.tapped))
            raise feature_refusal("layers", f"are {read}, but {self._taps.setting} taps {tapped} only")
        if kind not in self._maps:
            self._check_room(shape)
            dtype = FLOATS[features.weights_dtype]
            weights = await self._fetch(address, features.weights_sha256, shape.weights * dtype.itemsize)
            try:
                with refusing_for_memory():
                    mapping = await asyncio.to_thread(self._map, shape, weights, dtype)
            except ValueError as error:
                raise feature_refusal("weights_sha256", str(error)) from error
            if kind not in self._maps:  # another drafter of the kind may have been first
                self._check_room(shape)
                self._maps = {**self._maps, kind: mapping}
        size = feature_bytes(shape.width, features.dtype)
        self._readers[source] = _Reader(kind, features.dtype, size, features.window)
        log.info("features enabled", source=source, layers=list(kind.layers), width=shape.width, dtype=features.dtype)

    def sent(self, source: str, count: int | None = None) -> None:
        """Lets more features of a drafter be taken."""
        reader = self._readers.get(source)
        if reader is not None:
            reader.credit = MOST_UNSENT if count is None else min(reader.credit + count, MOST_UNSENT)
            if reader.queue:
                self._on_credit()

    def forget(self, source: str) -> None:
        """Removes a drafter; unknown ones are ignored. The last one of its kind takes the map with it."""
        reader = self._readers.pop(source, None)
        if reader is not None and all(other.kind != reader.kind for other in self._readers.values()):
            self._maps = {kind: mapping for kind, mapping in self._maps.items() if kind != reader.kind}

    def add(
        self,
        sequence_id: int,
        length: int,
        sources: Iterable[str],
        rows: FeatureRows,
        resting: Container[str] = (),
        *,
        always: bool = False,
    ) -> None:
        """Queues a sequence's features for the drafters among `sources` that read them.

        length: number of the sequence's committed tokens; rows beyond it are left out. resting: drafters that are
        paused, for which the last features are held. always: whether they draft for the sequence all the same.
        """
        for source in sources:
            reader = self._readers.get(source)
            features = rows.by_kind.get(reader.kind) if reader is not None else None
            if reader is None or features is None:  # not a reader, or one that came during the step
                continue
            first = max(0, length - reader.window - rows.first_position) if reader.window else 0
            end = min(len(features), length - rows.first_position)
            most = max(1, MOST_BYTES // reader.feature_bytes)
            rests = source in resting and not always
            if source not in resting:
                reader.resume()
            if rests:
                first = max(first, end - max(1, _MOST_HELD // reader.feature_bytes))
            for start in range(first, end, most):
                count = min(most, end - start)
                if reader.queued + count * reader.feature_bytes > _MOST_QUEUED:
                    break
                values = encode(features[start : start + count], reader.dtype)
                made = SequenceFeatures(sequence_id, source, rows.first_position + start, values)
                if rests:
                    reader.hold(made)
                else:
                    reader.queue.append(made)
                    reader.queued += len(values)

    def take(self, resting: Container[str] = ()) -> list[SequenceFeatures]:
        """Removes from the queues what may be sent now, and returns it. resting: drafters that are paused."""
        taken = []
        for source, reader in self._readers.items():
            if source not in resting:
                reader.resume()
            while reader.queue and reader.credit >= len(reader.queue[0].values):
                taken.append(reader.queue.popleft())
                reader.credit -= len(taken[-1].values)
                reader.queued -= len(taken[-1].values)
        return taken

    def _check_room(self, shape: FeatureShape) -> None:
        if len(self._maps) >= MOST_KINDS:
            raise at_capacity(f"{MOST_KINDS} kinds of features are in use; at most {MOST_KINDS} may be", _RETRY_SECONDS)
        made = sum(cast(FeatureShape, kind.shape).width for kind in self._maps)
        if made + shape.width > MOST_WIDTH * self._taps.hidden_size:
            raise at_capacity(
                f"features of {made} elements a token are made already; {shape.width} more would exceed {MOST_WIDTH} "
                "times the target's hidden size",
                _RETRY_SECONDS,
            )

    def _map(self, shape: FeatureShape, weights: bytearray, dtype: torch.dtype) -> FeatureMap:
        device = self._taps.device
        mapping: FeatureMap = FeatureMap.of(shape, weights, dtype).to(device=device, dtype=self._taps.dtype)
        if device.type != "cpu":
            # The engine's thread uses the map in another stream than the one that copies it in this thread.
            torch.cuda.current_stream(device).synchronize()
        return mapping
