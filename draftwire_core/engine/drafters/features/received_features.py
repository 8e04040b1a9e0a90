"""Features that come from elsewhere, kept for each sequence until it is closed."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.model.features.taps import SlotStates

_ROOM = 64
"""Fewest features that a sequence has room for."""


class _Received:
    """The features of one sequence."""

    def __init__(self, width: int, dtype: torch.dtype):
        self.end = 0
        """One more than the last position that has a feature."""
        self.features = torch.empty(_ROOM, width, dtype=dtype)
        self.known = np.zeros(_ROOM, dtype=np.bool_)

    def add(self, start: int, features: torch.Tensor) -> None:
        end = start + len(features)
        if end > len(self.features):
            room = max(end, 2 * len(self.features))
            wider = self.features.new_empty(room, self.features.shape[1])
            wider[: self.end] = self.features[: self.end]
            known = np.zeros(room, dtype=np.bool_)
            known[: self.end] = self.known[: self.end]
            self.features, self.known = wider, known
        self.features[start:end] = features.to(self.features.dtype)
        self.known[start:end] = True
        self.end = max(self.end, end)


class ReceivedFeatures:
    """The FeatureSource of a drafter outside the target's process.

    All features of a sequence are kept, in the host's memory: if the drafter gives up the sequence's KV slots, it reads
    them again.
    """

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device, table: SlotStates | None = None):
        """width: elements of a feature. dtype: type in which features are kept. device: where they are read. table: for
        drafts of several steps, by the network's slots."""
        self._width, self._dtype, self._device = width, dtype, device
        self._table = table
        self._received: dict[Hashable, _Received] = {}

    def open(self, key: Hashable) -> None:
        """Starts a sequence without features."""
        self._received[key] = _Received(self._width, self._dtype)

    def close(self, key: Hashable) -> None:
        """Drops a sequence; does nothing if it is not open."""
        self._received.pop(key, None)

    def add(self, key: Hashable, start: int, features: torch.Tensor) -> None:
        """Adds the features [n, width] of the positions from `start` on. Raises KeyError."""
        self._received[key].add(start, features)

    def computed(self, key: Hashable) -> int:
        """Returns one more than the last position that has a feature: they come in order."""
        return self._received[key].end

    def known(self, key: Hashable, start: int, end: int) -> np.ndarray:
        """Returns which positions have a feature, bool [end - start]."""
        return self._received[key].known[start:end]

    def read(self, key: Hashable, positions: np.ndarray) -> torch.Tensor:
        """Returns the features of positions, int64 [n], on the device: [n, width]."""
        return to_device(self._received[key].features.index_select(0, torch.from_numpy(positions)), self._device)

    def places(self, key: Hashable, positions: np.ndarray, own: np.ndarray) -> np.ndarray:
        """Writes the features of positions, int64 [n], to the table, in the order of the device's work. Returns where:
        at `own`, int64 [n]."""
        assert self._table is not None, "drafts of several steps have one"
        self._table.write(torch.from_numpy(own), self.read(key, positions))
        return own
