"""The hidden states that passes on Triton kernels keep for taps, at fixed addresses.

Which layers' states these are is data of the device, so that a captured graph serves whatever is tapped: drafters are
swapped while graphs are replayed. With taps and without them the same kernels run, so that no bit of a pass changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from draftwire_core.engine.device.device_copy import to_device
from draftwire_core.engine.model.features.taps import Tap
from draftwire_core.engine.model.packed_batch import PackedBatch

if TYPE_CHECKING:
    from draftwire_core.engine.model.cuda.kernels.norm import Kept

MOST_PLANES = 16
"""Layers that captured passes keep the inputs of at most: EAGLE-3 reads three, DFlash mostly five."""


class TappedRows:
    """Memory for the inputs of some layers, of all rows of a pass. The number of layers stands for what leaves the last
    one."""

    def __init__(self, layers: int, planes: int, rows: int, width: int, dtype: torch.dtype, device: torch.device):
        """layers: of the model. planes: layers that are read at most. rows: of the largest pass. width, dtype: of the
        hidden states."""
        self._layers = layers
        self._places = torch.full((layers + 1,), -1, dtype=torch.int32, device=device)
        self._planes = torch.empty(planes, rows, width, dtype=dtype, device=device)
        self._read: tuple[int, ...] = ()
        """The layers that are read, by plane."""

    def other(self, planes: int, rows: int) -> TappedRows:
        """Returns memory for passes of another size over the same model."""
        like = self._planes
        return TappedRows(self._layers, planes, rows, like.shape[2], like.dtype, like.device)

    def choose(self, layers: Iterable[int]) -> bool:
        """Reads these layers in passes that are launched from now on. Returns False, without effect, if they are too
        many. None are no change: what was read last is then read in vain, which takes less time than to stop it."""
        wanted = tuple(sorted(set(layers)))
        if len(wanted) > len(self._planes):
            return False
        if wanted and wanted != self._read:
            places = torch.full((self._layers + 1,), -1, dtype=torch.int32)
            places[list(wanted)] = torch.arange(len(wanted), dtype=torch.int32)
            self._places.copy_(to_device(places, self._places.device))
            self._read = wanted
        return True

    def at(self, layer: int) -> Kept:
        """The memory as the kernels take it that keep what enters a layer."""
        from draftwire_core.engine.model.cuda.kernels.norm import Kept  # needs Triton

        return Kept(self._places, self._planes, layer)

    def give(self, batch: PackedBatch, placed: Tensor) -> None:
        """Gives the taps of a batch what its pass, launched last, has kept. placed: the rows' slots on the device,
        int64 [rows]."""
        if not batch.taps:
            return
        slots, rows = torch.from_numpy(batch.numbers[2]), len(batch)
        for tap in batch.taps:
            # A copy, since the next pass overwrites this memory.
            tap.queue(slots, placed[:rows], torch.cat([self.read(layer, rows) for layer in tap.layers], dim=1))

    def read(self, layer: int, rows: int) -> Tensor:
        """Returns the inputs of a layer in the first rows of the last pass, [rows, width]: memory that the next one
        overwrites."""
        return self._planes[self._read.index(layer), :rows]


def tapped_layers(taps: Iterable[Tap]) -> set[int]:
    """The layers that taps read."""
    return {layer for tap in taps for layer in tap.layers}
