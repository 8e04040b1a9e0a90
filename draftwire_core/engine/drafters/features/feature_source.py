"""The source of the features of committed tokens, for a drafter."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Protocol, cast

import numpy as np
import torch

from draftwire_core.engine.drafters.drafter import EngineState, RunningSequence
from draftwire_core.engine.model.features.taps import SlotStates


class FeatureSource(Protocol):
    """The features of the committed tokens of sequences, by the sequences' keys and the tokens' positions."""

    def computed(self, key: Hashable) -> int:
        """Returns the number of leading tokens whose features are there or will never be."""

    def known(self, key: Hashable, start: int, end: int) -> np.ndarray:
        """Returns for each position from `start` to `end` - 1, all below `computed`, whether its feature is there: bool
        [end - start]."""

    def read(self, key: Hashable, positions: np.ndarray) -> torch.Tensor:
        """Returns the features of positions, int64 [n], that are there: [n, width]."""

    def places(self, key: Hashable, positions: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Returns where drafts of several steps find the features of positions, int64 [n], in `Feeding.features`: int64
        [n]. own: the network's slots of the rows that read them."""


class EngineFeatures:
    """The FeatureSource of a drafter in the engine's thread: vectors kept by the KV slots of the engine's sequences."""

    def __init__(self, states: SlotStates, engine: EngineState, window: int = 0):
        """window: last tokens of a sequence whose features are read; 0 for all."""
        self._states = states
        self._window = window
        self._running = cast(Mapping[Hashable, RunningSequence], engine.running)

    def computed(self, key: Hashable) -> int:
        """Returns the number of leading tokens that the target has computed; 0 for a sequence that does not run."""
        sequence = self._running.get(key)
        return 0 if sequence is None else len(sequence.slots)

    def known(self, key: Hashable, start: int, end: int) -> np.ndarray:
        """Returns which positions were computed while the features were read, bool [end - start]."""
        sequence = self._running[key]
        known = self._states.known(sequence.slots.array()[start:end])
        if self._window:
            known[: max(0, len(sequence.slots) + sequence.pending - self._window - start)] = False
        return known

    def read(self, key: Hashable, positions: np.ndarray) -> torch.Tensor:
        """Returns the features of positions, int64 [n]: [n, width]."""
        return self._states.read(self.places(key, positions))

    def places(self, key: Hashable, positions: np.ndarray, own: np.ndarray | None = None) -> np.ndarray:
        """Returns the target's slots of positions, int64 [n]: int64 [n]."""
        slots: np.ndarray = self._running[key].slots.array()[positions]
        return slots
