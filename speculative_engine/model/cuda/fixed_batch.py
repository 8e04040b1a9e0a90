"""Packed batches of the reproducible mode: the work of attention in pieces of one shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from speculative_engine.device_copy import to_device
from speculative_engine.kv.kv_slots import PADDING_SLOT
from speculative_engine.model.packed_batch import KEY_BLOCK, PackedBatch

TILE_ROWS = 8
"""Rows of a tile, which share keys. Further ones are padding."""
CHUNK = 64
"""Pairs of a tile and a block of keys in one product. Further ones are padding."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows in tiles of one lane each, and the blocks of keys that a tile sees, in tensors on the device.

    A tile and one of its blocks are a pair. Pairs are ordered by tile and block; padding pairs have block 0 of a tile
    after the last, which sees the padding slot alone.
    """

    rows: Tensor
    """Packed row of each place in a tile, int64 [(tiles + 1) * TILE_ROWS]; padding has row 0."""
    positions: Tensor
    """Position of each place, int64 [tiles + 1, TILE_ROWS]; 0 for padding."""
    tile: Tensor
    """Tile of each pair, int64 [pairs], a multiple of CHUNK."""
    first: Tensor
    """First position of each pair's block, int64 [pairs]."""
    keys: Tensor
    """Slots of each pair's block by position, int64 [pairs, KEY_BLOCK]; PADDING_SLOT beyond the lane."""
    folds: list[tuple[Tensor, Tensor]]
    """Steps that join the terms of each tile's blocks two by two: their indices, int64 [n] each; the index n of n terms
    is that of a neutral one. The last step leaves one term for each tile, in order."""
    places: Tensor
    """Places in tiles that hold rows, int64 [asked]."""
    place_rows: Tensor
    """Their packed rows, int64 [asked]."""
    count: int
    """Number of tiles, without the one for padding."""


class FixedBatch(PackedBatch):
    """A packed batch of a fixed number of rows, of which those without a lane are padding."""

    @cached_property
    def tiles(self) -> Tiles:
        """The rows in tiles."""
        _, positions, slots = self.host.numpy()
        rows: list[np.ndarray] = []
        paths: list[np.ndarray] = []
        for lane in self.lanes:
            path = np.concatenate([lane.context, slots[lane.rows]])
            asked = np.array(lane.rows[lane.first_query :], dtype=np.int64)
            for begin in range(0, len(asked), TILE_ROWS):
                rows.append(asked[begin : begin + TILE_ROWS])
                paths.append(path[: positions[rows[-1][-1]] + 1])
        blocks = [-(-len(path) // KEY_BLOCK) for path in paths]
        pairs = -(-sum(blocks) // CHUNK) * CHUNK
        count = len(rows)
        padded = np.zeros((count + 1, TILE_ROWS), dtype=np.int64)
        tile = np.full(pairs, count, dtype=np.int64)
        first = np.zeros(pairs, dtype=np.int64)
        keys = np.full((pairs, KEY_BLOCK), PADDING_SLOT, dtype=np.int64)
        places: list[np.ndarray] = []
        begin = 0
        for index, (own, path, seen) in enumerate(zip(rows, paths, blocks, strict=True)):
            padded[index, : len(own)] = own
            places.append(np.arange(len(own)) + index * TILE_ROWS)
            tile[begin : begin + seen] = index
            first[begin : begin + seen] = np.arange(seen) * KEY_BLOCK
            keys[begin : begin + seen].reshape(-1)[: len(path)] = path
            begin += seen
        place = np.concatenate(places)
        at = np.zeros_like(padded)
        at.reshape(-1)[place] = positions[padded.reshape(-1)[place]]
        return Tiles(
            rows=self._tensor(padded.reshape(-1)),
            positions=self._tensor(at),
            tile=self._tensor(tile),
            first=self._tensor(first),
            keys=self._tensor(keys),
            folds=[(self._tensor(left), self._tensor(right)) for left, right in _folds(blocks, pairs)],
            places=self._tensor(place),
            place_rows=self._tensor(padded.reshape(-1)[place]),
            count=count,
        )

    def _tensor(self, array: np.ndarray) -> Tensor:
        return to_device(torch.from_numpy(array), self.device)


def _folds(counts: list[int], terms: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Steps that add up adjacent runs of `counts` terms, each pairwise by its own order. terms: with the padding."""
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    while not steps or max(counts) > 1:
        left: list[np.ndarray] = []
        right: list[np.ndarray] = []
        begin = 0
        for count in counts:
            own = np.arange(begin, begin + count)
            left.append(own[::2])
            # The last of an odd number is left over: zero is added to it, so that a further block of zeros, which a
            # longer neighbour in the tile may see, changes nothing.
            right.append(np.append(own[1::2], terms) if count % 2 else own[1::2])
            begin += count
        steps.append((np.concatenate(left), np.concatenate(right)))
        counts = [-(-count // 2) for count in counts]
        terms = sum(counts)
    return steps
