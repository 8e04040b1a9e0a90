"""The work of attention by slots: which rows see which positions, cut into items for the kernels.

The numbers of an *item*, the work of a program, are: first place of queries, number of places, first segment, segment
after the last, part, lowest position of its rows. Those of a *segment*, a range of positions: index in `seen` that its
position 0 would have, first position, position after the last, lane that sees it (-1: all rows of the item). Those of a
*place* of queries: row, lane, position (-1 for padding), index of the partial sum of its part 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from speculative_engine.model.cuda.lane_paths import LanePaths, ranges_of
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
        sequences = ranges_of(batch.lanes)
        paths = LanePaths.of(sequences)
        if len(paths.asked) != len(batch) or (np.bincount(paths.asked, minlength=len(batch)) != 1).any():
            raise ValueError(f"lanes contain {len(paths.asked)} rows of {len(batch)}, or some rows twice")
        lengths = np.array([len(lanes[0].context) for lanes in sequences], dtype=np.int64)
        shared = lengths // TILE_KEYS * TILE_KEYS
        seen, bases, tails = _seen(batch, sequences, paths, shared)
        asked = np.empty((len(batch), ASKED), dtype=np.int64)
        asked[:, 0] = paths.asked
        asked[:, 1] = lane = np.repeat(np.arange(len(paths.lanes)), [len(each.rows) for each in paths.lanes])[
            paths.queries
        ]
        asked[:, 2] = position = lengths[paths.ranges] + paths.queries - paths.starts[paths.queries]
        tiles = Tiles.of(paths.ranges, position, tile_rows(batch.group_size))
        rounds = place_partials(tiles, asked)
        segments, items = segments_and_items(tiles, lane, position, shared, bases, tails)
        return cls(items.astype(np.int32), segments.astype(np.int32), asked.astype(np.int32), seen, rounds)


class Tiles(NamedTuple):
    """Tiles of queries, int64 [tiles] each."""

    sequences: np.ndarray
    firsts: np.ndarray
    """First place of each."""
    counts: np.ndarray
    """Places of each."""
    lowest: np.ndarray
    """Lowest position of each."""
    parts: np.ndarray
    """Parts that its rows see."""

    @classmethod
    def of(cls, sequences: np.ndarray, positions: np.ndarray, rows: int) -> Tiles:
        """Cuts places, of each of which the sequence and the position are given, into tiles of `rows` rows."""
        sizes = np.bincount(sequences)
        counts = -(-sizes // rows)
        of_tile = np.repeat(np.arange(len(sizes)), counts)
        ends = sizes.cumsum()
        firsts = (ends - sizes)[of_tile] + rows * _within(counts)
        return cls(
            of_tile,
            firsts,
            np.minimum(rows, ends[of_tile] - firsts),
            np.minimum.reduceat(positions, firsts),
            np.maximum.reduceat(positions, firsts) // PART + 1,
        )


def tile_rows(group: int) -> int:
    """Rows of a tile of queries. group: query heads per key-value head."""
    return max(1, TILE_QUERIES // group)


def _seen(
    batch: PackedBatch, sequences: list[list[Lane]], paths: LanePaths, shared: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lists the slots that are seen, int32. Also returns the index of position 0 of each sequence, and of each lane.

    shared: positions of each sequence that all its lanes see in the same slots; those of a lane come after them.
    """
    own = batch.host[2].numpy()[paths.rows]
    found: list[np.ndarray] = []
    bases: list[int] = []
    tails: list[int] = []
    count = row = 0
    for lanes, begun in zip(sequences, shared.tolist(), strict=True):
        context = lanes[0].context
        bases.append(count)
        found.append(context[:begun])
        count += begun
        for lane in lanes:
            tails.append(count - begun)
            found += context[begun:], own[row : row + len(lane.rows)]
            count += len(context) - begun + len(lane.rows)
            row += len(lane.rows)
    return np.concatenate(found, dtype=np.int32, casting="same_kind"), np.array(bases), np.array(tails)


def place_partials(tiles: Tiles, asked: np.ndarray) -> list[Round]:
    """Writes the index of each place's partial sums, which are those of its round."""
    needs = tiles.counts * tiles.parts
    begins = needs.cumsum() - needs
    items = tiles.parts.cumsum() - tiles.parts
    firsts = [0]
    if needs.sum() > MOST_PARTIALS:
        for tile, begin in enumerate(begins.tolist()):
            if begin > begins[firsts[-1]] and begin + needs[tile] - begins[firsts[-1]] > MOST_PARTIALS:
                firsts.append(tile)
    begins -= np.repeat(begins[firsts], np.diff([*firsts, len(needs)]))
    of_place = np.repeat(np.arange(len(needs)), tiles.counts)
    asked[:, 3] = begins[of_place] + _within(tiles.counts) * tiles.parts[of_place]
    rounds = []
    for first, last in pairwise([*firsts, len(needs)]):
        end = last - 1
        rounds.append(
            Round(
                int(items[first]),
                int(items[end] + tiles.parts[end]),
                int(tiles.firsts[first]),
                int(tiles.firsts[end] + tiles.counts[end]),
                int(begins[end] + needs[end]),
            )
        )
    return rounds


def segments_and_items(
    tiles: Tiles, lane: np.ndarray, position: np.ndarray, shared: np.ndarray, bases: np.ndarray, tails: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Lists the segments and the items that see them. lane, position: of each place; the others as `_seen` has them.

    Parts that are wholly shared are one segment each, the same for all tiles of a sequence. A tile's later parts have
    one for what is shared, and one for each lane of the tile; some of these are empty.
    """
    counts = -(-shared // PART)
    sequence = np.repeat(np.arange(len(shared)), counts)
    begin = _within(counts) * PART
    common = np.stack([bases[sequence], begin, np.minimum(begin + PART, shared[sequence]), np.full(len(begin), -1)], 1)
    # Runs: adjacent places of one tile and lane, whose positions ascend.
    tile_of_place = np.repeat(np.arange(len(tiles.counts)), tiles.counts)
    changes = np.append((np.diff(lane) != 0) | (np.diff(tile_of_place) != 0), True)
    last_places = changes.nonzero()[0]
    runs = np.bincount(tile_of_place[last_places], minlength=len(tiles.counts))
    first_run = runs.cumsum() - runs
    tile = np.repeat(np.arange(len(tiles.counts)), tiles.parts)
    part = _within(tiles.parts)
    own = tiles.sequences[tile]
    whole = part < shared[own] // PART
    sizes = np.where(whole, 0, 1 + runs[tile])
    items = np.empty((len(tile), ITEM), dtype=np.int64)
    items[:, 0], items[:, 1], items[:, 4], items[:, 5] = (
        tiles.firsts[tile],
        tiles.counts[tile],
        part,
        tiles.lowest[tile],
    )
    items[:, 2] = np.where(whole, (counts.cumsum() - counts)[own] + part, len(common) + sizes.cumsum() - sizes)
    items[:, 3] = items[:, 2] + np.maximum(sizes, 1)
    item = np.repeat(np.arange(len(tile)), sizes)
    number = _within(sizes)
    run = last_places[np.minimum(first_run[tile[item]] + np.maximum(number - 1, 0), len(last_places) - 1)]
    first = part[item] * PART
    bound = shared[own[item]]
    late = np.empty((len(item), SEGMENT), dtype=np.int64)
    late[:, 0] = np.where(number == 0, bases[own[item]], tails[lane[run]])
    late[:, 1] = np.where(number == 0, first, np.maximum(first, bound))
    late[:, 2] = np.minimum(first + PART, np.where(number == 0, bound, position[run] + 1))
    late[:, 3] = np.where(number == 0, -1, lane[run])
    return np.concatenate([common, late]), items


def _within(counts: np.ndarray) -> np.ndarray:
    """0 to n - 1 for each n of `counts`, one after another."""
    found: np.ndarray = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return found
