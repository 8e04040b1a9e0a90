"""The rows of a packed batch, and the slots that they see, laid out for attention by slots."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from draftwire_core.engine.kv.kv_slots import SlotList
from draftwire_core.engine.model.cuda.work.parts import begin_of, part_of
from draftwire_core.engine.model.cuda.work.slot_work import (
    ASKED,
    PAGE,
    TILE_KEYS,
    Pieces,
    Round,
    Tiles,
    place_partials,
    segments_and_items,
    tile_rows,
    work_numbers,
)
from draftwire_core.engine.model.packed_batch import Lane, PackedBatch


class LanePaths(NamedTuple):
    """The rows of all lanes, one after another; int64 arrays."""

    lanes: list[Lane]
    rows: np.ndarray
    """[n]"""
    starts: np.ndarray
    """Beginning of the lane of each of the `rows`, [n]."""
    queries: np.ndarray
    """Indices of the `rows` that are queries, [asked]."""
    asked: np.ndarray
    """Rows of the queries, [asked]."""
    ranges: np.ndarray
    """Ranges of the queries, [asked]."""

    @classmethod
    def of(cls, ranges: list[list[Lane]]) -> LanePaths:
        """Lists the rows of lanes, by range."""
        lanes = list(chain.from_iterable(ranges))
        lengths = np.array([len(lane.rows) for lane in lanes], dtype=np.int64)
        first = np.array([lane.first_query for lane in lanes], dtype=np.int64)
        begins = lengths.cumsum() - lengths
        rows = np.fromiter(chain.from_iterable(lane.rows for lane in lanes), np.int64, int(lengths.sum()))
        queries = (np.arange(len(rows)) >= np.repeat(begins + first, lengths)).nonzero()[0]
        sizes = [sum(len(lane.rows) - lane.first_query for lane in lanes) for lanes in ranges]
        return cls(
            lanes, rows, np.repeat(begins, lengths), queries, rows[queries], np.repeat(np.arange(len(ranges)), sizes)
        )


def ranges_of(lanes: list[Lane]) -> list[list[Lane]]:
    """Groups adjacent lanes that share a context."""
    ranges: list[list[Lane]] = []
    for lane in lanes:
        if ranges and ranges[-1][0].context is lane.context:
            ranges[-1].append(lane)
        else:
            ranges.append([lane])
    return ranges


class SlotMove(NamedTuple):
    """A range of `seen` that is to be copied into the tables."""

    owner: SlotList
    source: int
    """Index in `seen`."""
    target: int
    """Index in the tables."""
    slots: int
    """Number of slots, at most a part's."""
    end: int
    """Position after the last of them."""


class Known(Protocol):
    """The part of a sequence that the tables know, and may know after a step."""

    @property
    def known(self) -> int:
        """Positions whose slots they have, a multiple of a tile's."""

    @property
    def segments(self) -> np.ndarray:
        """Positions by part, int64 [parts, SEGMENT]."""

    @property
    def pages(self) -> np.ndarray:
        """Index of the page of each part, int64."""

    @property
    def room(self) -> int:
        """Positions that the pages have room for and that may become known."""


class Tables(Protocol):
    """Sequences as known from earlier steps, see `slot_tables.py`."""

    def look_up(self, owner: SlotList, length: int) -> Known:
        """Returns what is known of a sequence's first `length` positions, which end with a tile."""


@dataclass(frozen=True, slots=True)
class SlotLayout:
    """The layout of one packed batch, in int32 arrays; `slot_work.py` has what their numbers mean."""

    items: np.ndarray
    """[items, ITEM]"""
    segments: np.ndarray
    """[segments, SEGMENT]"""
    asked: np.ndarray
    """Places of queries, [rows with a lane, ASKED]; rows of one sequence are adjacent."""
    seen: np.ndarray
    """Slots, [n]: those of each sequence before the tile in which its committed tokens end, as far as the tables lack
    them, then those of its lanes."""
    rounds: list[Round]
    moves: list[SlotMove]
    """The part of `seen` to be copied into the tables after the pass."""
    numbers: int
    """Numbers of all this if the tables knew nothing, so that what fits does not depend on what they know: all ranks
    must find the same."""

    @classmethod
    def of(cls, batch: PackedBatch, tables: Tables | None = None) -> SlotLayout:
        """Lays out a batch. Raises ValueError if a row is in no lane, or in several."""
        sequences = ranges_of(batch.lanes)
        paths = LanePaths.of(sequences)
        if len(paths.asked) != len(batch) or (np.bincount(paths.asked, minlength=len(batch)) != 1).any():
            raise ValueError(f"lanes contain {len(paths.asked)} rows of {len(batch)}, or some rows twice")
        lengths = np.array([len(lanes[0].context) for lanes in sequences], dtype=np.int64)
        shared = lengths // TILE_KEYS * TILE_KEYS
        seen, tails, pieces, moves, known = _seen(batch, sequences, paths, shared, tables)
        asked = np.empty((len(batch), ASKED), dtype=np.int64)
        asked[:, 0] = paths.asked
        asked[:, 1] = lane = np.repeat(np.arange(len(paths.lanes)), [len(each.rows) for each in paths.lanes])[
            paths.queries
        ]
        least = np.array([len(each.rows) - 1 if each.whole else 0 for each in paths.lanes], dtype=np.int64)
        asked[:, 2] = position = lengths[paths.ranges] + np.maximum(
            paths.queries - paths.starts[paths.queries], least[lane]
        )
        tiles = Tiles.of(paths.ranges, position, tile_rows(batch.group_size))
        rounds = place_partials(tiles, asked)
        work = segments_and_items(tiles, lane, position, shared, pieces, tails)
        return cls(
            work.items.astype(np.int32),
            work.segments.astype(np.int32),
            asked.astype(np.int32),
            seen,
            rounds,
            moves,
            work_numbers(len(work.items), work.most_segments, len(seen) + known, work.parts),
        )


def _seen(
    batch: PackedBatch, sequences: list[list[Lane]], paths: LanePaths, shared: np.ndarray, tables: Tables | None
) -> tuple[np.ndarray, np.ndarray, Pieces, list[SlotMove], int]:
    """Lists the slots that are seen, int32. Also returns the index of position 0 of each lane, the pieces of what all
    lanes of a sequence see, what of it the tables may take, and how many positions they know.

    shared: positions of each sequence that all its lanes see in the same slots; those of a lane come after them.
    """
    own = batch.numbers[2][paths.rows]
    found: list[np.ndarray] = []
    bases: list[int] = []
    tails: list[int] = []
    knowns: list[Known | None] = []
    moves: list[SlotMove] = []
    count = row = resident = 0
    for lanes, begun in zip(sequences, shared.tolist(), strict=True):
        context, owner = lanes[0].context, lanes[0].owner
        about = tables.look_up(owner, begun) if tables is not None and owner is not None and begun else None
        first = 0 if about is None else about.known
        bases.append(count - first)
        knowns.append(about)
        if first < begun:
            if about is not None and owner is not None:
                moves += _moves(owner, about, count - first)
            found.append(context[first:begun])
            count += begun - first
        resident += first
        for lane in lanes:
            tails.append(count - begun)
            found += context[begun:], own[row : row + len(lane.rows)]
            count += len(context) - begun + len(lane.rows)
            row += len(lane.rows)
    if resident:
        pieces = _pieces(knowns, shared.tolist(), bases)
    else:
        pieces = Pieces.listed(shared, np.array(bases))
    return np.concatenate(found, dtype=np.int32, casting="same_kind"), np.array(tails), pieces, moves, resident


def _pieces(knowns: list[Known | None], shared: list[int], bases: list[int]) -> Pieces:
    """The pieces of sequences of which some are known, by `bases` for the positions that are listed."""
    found: list[np.ndarray] = []
    counts: list[int] = []
    for about, last, base in zip(knowns, shared, bases, strict=True):
        first = count = 0
        if about is not None:
            found.append(about.segments)
            first, count = about.known, len(about.segments)
        if first < last:
            listed = [(base, begin, end, -1) for begin, end in _cut(first, last)]
            found.append(np.array(listed, dtype=np.int64))
            count += len(listed)
        counts.append(count)
    return Pieces(np.repeat(np.arange(len(counts)), counts), np.concatenate(found))


def _moves(owner: SlotList, about: Known, base: int) -> Iterator[SlotMove]:
    """The copies of a sequence's positions that may become known, by part. base: index in `seen` of its position 0."""
    for begin, end in _cut(about.known, about.room):
        yield SlotMove(owner, base + begin, int(about.pages[begin // PAGE]) * PAGE + begin % PAGE, end - begin, end)


def _cut(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Cuts a range of positions at parts."""
    while first < last:
        end = min(last, begin_of(part_of(first) + 1))
        yield first, end
        first = end
