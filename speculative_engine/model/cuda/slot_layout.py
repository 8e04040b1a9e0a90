"""The work of attention by slots: which rows see which positions, cut into items for the kernels.

Numbers of an *item*, the work of a program: first place of queries, number of places, first segment, last segment, part,
lowest position of its rows. Of a *segment*, a range of positions: index in `seen` of its position 0 (if it had one),
first position, position after the last, lane that sees it (-1: all rows of the item). Of a *place* of queries: row, lane,
position (-1 for padding), index of the partial sum of its part 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from speculative_engine.model.packed_batch import Lane, PackedBatch

TILE_QUERIES = 32
"""Rows times query heads of a tile of queries, if a key-value head has no more query heads than that."""
TILE_KEYS = 64
"""Positions of a tile of keys, which are multiplied at once."""
PART = 512
"""Positions of a part, whose sums one program computes."""
ITEM, SEGMENT, ASKED = 6, 4, 4
"""Numbers of an item, a segment and a place of queries."""
MOST_PARTIALS = 4096
"""Partial sums of a round. Each takes 4 bytes an element of all heads: 17 KB with 32 heads of 128."""


class Round(NamedTuple):
    """Items whose partial sums fit into the memory for them, and their places of queries."""

    first_item: int
    last_item: int
    first_place: int
    last_place: int
    partials: int


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The layout of one packed batch, in int32 arrays."""

    items: np.ndarray
    """[items, ITEM]"""
    segments: np.ndarray
    """[segments, SEGMENT]"""
    asked: np.ndarray
    """Places of queries, [rows with a lane, ASKED]; rows of one sequence are adjacent."""
    seen: np.ndarray
    """Slots, [n]: those of each sequence before the tile in which its committed tokens end, then those of its lanes."""
    rounds: list[Round]

    @classmethod
    def of(cls, batch: PackedBatch) -> SlotLayout:
        """Lays out a batch. Raises ValueError if a row is in no lane, or in several."""
        return _Builder(batch).layout()


def tile_rows(group: int) -> int:
    """Rows of a tile of queries. group: query heads per key-value head."""
    return max(1, TILE_QUERIES // group)


class _Builder:
    def __init__(self, batch: PackedBatch):
        self._batch = batch
        self._slots = batch.host[2].numpy()
        self._rows = tile_rows(batch.group_size)
        self._items: list[np.ndarray] = []
        self._segments: list[tuple[int, int, int, int]] = []
        self._asked: list[np.ndarray] = []
        self._seen: list[np.ndarray] = []
        self._seen_count = self._places = self._lanes = self._item_count = 0
        self._partials = 0
        """Of the round that is being filled."""
        self._rounds: list[Round] = []
        self._begun = (0, 0)
        """The first item and the first place of that round."""

    def layout(self) -> SlotLayout:
        batch = self._batch
        for lanes in _sequences(batch.lanes):
            self._add(lanes)
        self._end_round()
        asked = np.concatenate([*self._asked, np.empty((0, ASKED), np.int64)])
        if len(asked) != len(batch) or len(np.unique(asked[:, 0])) != len(batch):
            raise ValueError(f"lanes contain {len(asked)} rows of {len(batch)}, or some rows twice")
        return SlotLayout(
            np.concatenate([*self._items, np.empty((0, ITEM), np.int64)]).astype(np.int32),
            np.array(self._segments, dtype=np.int32).reshape(-1, SEGMENT),
            asked.astype(np.int32),
            np.concatenate([*self._seen, np.empty(0, np.int64)]).astype(np.int32),
            self._rounds,
        )

    def _add(self, lanes: list[Lane]) -> None:
        """Adds the lanes of one sequence."""
        context = lanes[0].context
        shared = len(context) // TILE_KEYS * TILE_KEYS
        base = self._see(context[:shared])
        first_segment = len(self._segments)
        self._segments += [
            (base, begin, min(begin + PART, shared), -1) for begin in range(0, shared, PART)
        ]  # of all tiles of queries
        asked: list[np.ndarray] = []
        tails: dict[int, int] = {}
        for number, lane in enumerate(lanes, self._lanes):
            tails[number] = self._see(np.concatenate([context[shared:], self._slots[lane.rows]])) - shared
            rows = np.array(lane.rows[lane.first_query :], dtype=np.int64)
            own = np.empty((len(rows), ASKED), dtype=np.int64)
            own[:, 0], own[:, 1] = rows, number
            own[:, 2] = np.arange(len(rows)) + (len(context) + lane.first_query)
            asked.append(own)
        self._lanes += len(lanes)
        places = np.concatenate(asked)
        for begin in range(0, len(places), self._rows):
            self._add_tile(places[begin : begin + self._rows], shared, first_segment, tails)

    def _add_tile(self, places: np.ndarray, shared: int, first_segment: int, tails: dict[int, int]) -> None:
        """Adds a tile of queries. shared: positions that all rows of the sequence see in the same slots."""
        count = len(places)
        lowest, parts = int(places[:, 2].min()), int(places[:, 2].max()) // PART + 1
        if self._partials and self._partials + count * parts > MOST_PARTIALS:
            self._end_round()
        places[:, 3] = self._partials + np.arange(count) * parts
        self._partials += count * parts
        self._asked.append(places)
        items = np.empty((parts, ITEM), dtype=np.int64)
        items[:, 0], items[:, 1], items[:, 4], items[:, 5] = self._places, count, np.arange(parts), lowest
        whole = shared // PART
        items[:, 2] = first_segment + items[:, 4]
        items[:, 3] = items[:, 2] + 1
        lanes = [(int(lane), int(places[places[:, 1] == lane, 2].max()) + 1) for lane in np.unique(places[:, 1])]
        for part in range(whole, parts):
            begin, end = part * PART, (part + 1) * PART
            items[part, 2] = len(self._segments)
            if begin < shared:
                self._segments.append(self._segments[first_segment + part])
            for lane, last in lanes:
                if max(begin, shared) < min(end, last):
                    self._segments.append((tails[lane], max(begin, shared), min(end, last), lane))
            items[part, 3] = len(self._segments)
        self._items.append(items)
        self._item_count += parts
        self._places += count

    def _see(self, slots: np.ndarray) -> int:
        """Appends to the slots that are seen; returns the index of the first."""
        first = self._seen_count
        self._seen.append(slots)
        self._seen_count += len(slots)
        return first

    def _end_round(self) -> None:
        first_item, first_place = self._begun
        self._rounds.append(Round(first_item, self._item_count, first_place, self._places, self._partials))
        self._begun = self._item_count, self._places
        self._partials = 0


def _sequences(lanes: list[Lane]) -> list[list[Lane]]:
    """Groups adjacent lanes that share a context."""
    found: list[list[Lane]] = []
    for lane in lanes:
        if found and found[-1][0].context is lane.context:
            found[-1].append(lane)
        else:
            found.append([lane])
    return found
