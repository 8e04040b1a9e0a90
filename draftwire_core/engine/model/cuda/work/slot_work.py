"""The work of attention by slots: which rows see which positions, cut into items for the kernels.

The numbers of an *item*, the work of a program, are: first place of queries, number of places, first segment, segment
after the last, part, lowest position of its rows. Those of a *segment*, a range of positions: index in `seen` that its
position 0 would have, first position, position after the last, lane that sees it (-1: all rows of the item; -2: all,
and the index is one of the tables, see `slot_tables.py`). Those of a *place* of queries: row, lane, position (-1 for
padding), index of the partial sum of its part 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import Tensor

from draftwire_core.engine.model.cuda.work.parts import begin_of, part_count, part_of

TILE_QUERIES = 32
"""Rows times query heads of a tile of queries, if a key-value head has no more query heads than that."""
TILE_KEYS = 64
"""Positions of a tile of keys, which are multiplied at once."""
PAGE = 512
"""Positions of a page of the tables, which is as long as a part or longer; see `parts.py`."""
ITEM, SEGMENT, ASKED, MOVE = 6, 4, 4, 3
"""Numbers of an item, a segment, a place of queries and a move into the tables."""
RESIDENT = -2
"""In place of the lane of a segment whose slots are in the tables; all rows of the item see it."""
MOST_PARTIALS = 4096
"""Partial sums of a round. Each takes 4 bytes an element of all heads: 17 KB with 32 heads of 128."""


class Round(NamedTuple):
    """Items whose partial sums fit into the memory for them, and their places of queries."""

    first_item: int
    last_item: int
    first_place: int
    last_place: int
    partials: int


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
            part_of(np.maximum.reduceat(positions, firsts)) + 1,
        )


def tile_rows(group: int) -> int:
    """Rows of a tile of queries. group: query heads per key-value head."""
    return max(1, TILE_QUERIES // group)


class Pieces(NamedTuple):
    """The ranges of positions that all rows of a sequence see in the same slots: one or two of each part."""

    sequences: np.ndarray
    """Ascending, int64 [pieces]."""
    segments: np.ndarray
    """In order of position within a sequence, int64 [pieces, SEGMENT]."""

    @classmethod
    def listed(cls, shared: np.ndarray, bases: np.ndarray) -> Pieces:
        """The first `shared` positions of each sequence, listed in `seen` from the index that its position 0 would
        have."""
        counts = part_count(shared)
        sequences = np.repeat(np.arange(len(counts)), counts)
        parts = _within(counts)
        begins = begin_of(parts)
        ends = np.minimum(begin_of(parts + 1), shared[sequences])
        return cls(sequences, np.stack([bases[sequences], begins, ends, np.full(len(begins), -1)], 1))


class Work(NamedTuple):
    """The segments of a step, and the items that see them."""

    segments: np.ndarray
    """int64 [segments, SEGMENT]"""
    items: np.ndarray
    """int64 [items, ITEM]"""
    most_segments: int
    """A bound of the segments that there would be for other pieces of the same parts, of which a part has two."""
    parts: int
    """Parts of which something is shared by all rows of a sequence."""


def work_numbers(items: int, segments: int, seen: int, moves: int) -> int:
    """Numbers of a step's items, segments, slots and moves, one after the other."""
    return segments_at(items) + SEGMENT * segments + seen + MOVE * moves


def segments_at(items: int) -> int:
    """Returns where the segments begin behind items, at a multiple of their size."""
    return -(-ITEM * items // SEGMENT) * SEGMENT


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
    tiles: Tiles, lane: np.ndarray, position: np.ndarray, shared: np.ndarray, pieces: Pieces, tails: np.ndarray
) -> Work:
    """Lists the segments and the items that see them.

    The pieces of parts that are wholly shared are segments for all tiles of a sequence. A tile's later parts have
    copies of theirs, and a segment for each lane of the tile; some of these are empty.

    lane, position: of each place. shared: positions of each sequence that all its rows see in the same slots, which
    are those of the `pieces`. tails: index in `seen` of position 0 of each lane.
    """
    common = pieces.segments
    counts = part_count(shared)
    first_part = counts.cumsum() - counts
    part_of_piece = first_part[pieces.sequences] + part_of(common[:, 1])
    parts = int(counts.sum())
    pieces_of_part = np.bincount(part_of_piece, minlength=parts + 1)  # one more, for parts without any
    first_piece = pieces_of_part.cumsum() - pieces_of_part
    # Runs: adjacent places of one tile and lane, whose positions ascend.
    tile_of_place = np.repeat(np.arange(len(tiles.counts)), tiles.counts)
    changes = np.append((np.diff(lane) != 0) | (np.diff(tile_of_place) != 0), True)
    last_places = changes.nonzero()[0]
    runs = np.bincount(tile_of_place[last_places], minlength=len(tiles.counts))
    first_run = runs.cumsum() - runs
    tile = np.repeat(np.arange(len(tiles.counts)), tiles.parts)
    part = _within(tiles.parts)
    own = tiles.sequences[tile]
    whole = part < part_of(shared[own])
    shared_part = np.where(part < counts[own], first_part[own] + part, parts)
    own_pieces = pieces_of_part[shared_part]
    own_runs = runs[tile]
    sizes = np.where(whole, 0, own_pieces + own_runs)
    items = np.empty((len(tile), ITEM), dtype=np.int64)
    items[:, 0], items[:, 1], items[:, 4], items[:, 5] = (
        tiles.firsts[tile],
        tiles.counts[tile],
        part,
        tiles.lowest[tile],
    )
    items[:, 2] = np.where(whole, first_piece[shared_part], len(common) + sizes.cumsum() - sizes)
    items[:, 3] = items[:, 2] + np.where(whole, own_pieces, sizes)
    item = np.repeat(np.arange(len(tile)), sizes)
    number = _within(sizes) - own_pieces[item]
    run = last_places[first_run[tile[item]] + np.maximum(number, 0)]
    late = np.empty((len(item), SEGMENT), dtype=np.int64)
    late[:, 0] = tails[lane[run]]
    late[:, 1] = np.maximum(begin_of(part[item]), shared[own[item]])
    late[:, 2] = np.minimum(begin_of(part[item] + 1), position[run] + 1)
    late[:, 3] = lane[run]
    copied = (number < 0).nonzero()[0]
    late[copied] = common[(first_piece[shared_part] + own_pieces)[item[copied]] + number[copied]]
    return Work(np.concatenate([common, late]), items, 2 * (parts + len(items)) + int(own_runs.sum()), parts)


def _within(counts: np.ndarray) -> np.ndarray:
    """0 to n - 1 for each n of `counts`, one after another."""
    found: np.ndarray = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    return found


@dataclass(frozen=True, slots=True)
class PlacedWork:
    """The work of a round of attention (`slot_work.py`), int32 tensors on the device."""

    ranges: Tensor
    """The round's first item, and the one after the last, [2]."""
    items: Tensor
    segments: Tensor
    asked: Tensor
    seen: Tensor
    tables: Tensor
    """The slots that segments which were listed by earlier steps refer to."""
    first_place: int
    places: int
    """Places of queries, from `first_place` on."""
    most_items: int
    """Items that there may be; sizes the launch."""
    partials: int
    """Partial sums that there may be."""
