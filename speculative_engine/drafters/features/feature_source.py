"""Where a drafter finds the features of committed tokens."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol, cast

import numpy as np
import torch

from speculative_engine.drafters.drafter import EngineState, RunningSequence
from speculative_engine.model.taps import SlotStates


class FeatureSource(Protocol):
    """The features of the committed tokens of sequences, by the sequences' keys and the tokens' positions."""

    def computed(self, key: Hashable) -> int:
        """Returns the number of leading tokens whose features are there or will never be."""

    def known(self, key: Hashable, start: int, end: int) -> np.ndarray:
        """Returns for each position from `start` to `end` - 1, all below `computed`, whether its feature is there: bool
        [end - start]."""

    def read(self, key: Hashable, positions: np.ndarray) -> torch.Tensor:
        """Returns the features of positions, int64 [n], that are there: [n, width]."""


class EngineFeatures:
    """The FeatureSource of a drafter in the engine's thread: vectors kept by the KV slots of the engine's sequences."""

    def __init__(self, states: SlotStates, engine: EngineState):
        self._states = states
        self._running = cast(Mapping[Hashable, RunningSequence], engine.running)

    def computed(self, key: Hashable) -> int:
        """Returns the number of leading tokens that the target has computed; 0 for a sequence that does not run."""
        sequence = self._running.get(key)
        return 0 if sequence is None else len(sequence.slots)

    def known(self, key: Hashable, start: int, end: int) -> np.ndarray:
        """Returns which positions were computed while the features were read, bool [end - start]."""
        return self._states.known(self._running[key].slots.array()[start:end])

    def read(self, key: Hashable, positions: np.ndarray) -> torch.Tensor:
        """Returns the features of positions, int64 [n]: [n, width]."""
        return self._states.read(self._running[key].slots.array()[positions])
