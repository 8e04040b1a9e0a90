"""The work of attention of several steps of drafting, known before the first: only the tokens are not.

A row's position, its slot and the slots that it sees follow from the shape of the tree. So the numbers of all steps are
laid out at once, and contexts are listed once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from draftwire_core.engine.model.cuda.work.slot_work import (
    ASKED,
    TILE_KEYS,
    Pieces,
    Tiles,
    place_partials,
    segments_and_items,
    tile_rows,
)


class DraftCandidate(NamedTuple):
    """A token that an earlier step finds."""

    step: int
    row: int
    rank: int
    """The candidate's place among the best tokens of the row."""


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A row of a step."""

    context: int
    """Index of its sequence's context."""
    path: tuple[int, ...]
    """Slots of its ancestors behind the context, in order."""
    slot: int
    """The slot that it writes."""
    token: int | DraftCandidate
    """The candidate's token, or the place where it will be found."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of one step."""

    asked: np.ndarray
    """Places of queries, int32 [rows, ASKED]."""
    first_item: int
    last_item: int
    partials: int


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """The layout of some steps, in int32 arrays as those of `SlotLayout`."""

    steps: list[StepWork]
    items: np.ndarray
    segments: np.ndarray
    seen: np.ndarray

    @classmethod
    def of(
        cls, contexts: Sequence[np.ndarray], steps: Sequence[Sequence[DraftRow]], group_size: int
    ) -> DraftLayout | None:
        """Lays out steps; None if the partial sums of one take more than a round.

        contexts: slots by position of each sequence, int64. steps: the rows of each step, those of a sequence adjacent
        and in order of sequences. group_size: query heads per key-value head.
        """
        lengths = np.array([len(context) for context in contexts], dtype=np.int64)
        shared = lengths // TILE_KEYS * TILE_KEYS
        pieces = Pieces.listed(shared, shared.cumsum() - shared)
        seen = [context[:begun] for context, begun in zip(contexts, shared.tolist(), strict=True)]
        count = int(shared.sum())
        works: list[StepWork] = []
        items: list[np.ndarray] = []
        segments: list[np.ndarray] = []
        item_count = segment_count = 0
        for rows in steps:
            tails: list[int] = []
            for row in rows:
                context, begun = contexts[row.context], int(shared[row.context])
                tails.append(count - begun)
                seen += context[begun:], np.array([*row.path, row.slot], dtype=np.int64)
                count += len(context) - begun + len(row.path) + 1
            sequence = np.array([row.context for row in rows], dtype=np.int64)
            lane = np.arange(len(rows))
            position = lengths[sequence] + np.array([len(row.path) for row in rows], dtype=np.int64)
            asked = np.stack([lane, lane, position, np.zeros_like(lane)], 1)
            tiles = Tiles.of(sequence, position, tile_rows(group_size))
            rounds = place_partials(tiles, asked)
            if len(rounds) > 1:
                return None
            own_segments, own_items, *_ = segments_and_items(tiles, lane, position, shared, pieces, np.array(tails))
            own_items[:, 2:4] += segment_count
            works.append(
                StepWork(
                    asked.astype(np.int32).reshape(-1, ASKED),
                    item_count,
                    item_count + len(own_items),
                    rounds[0].partials,
                )
            )
            items.append(own_items)
            segments.append(own_segments)
            item_count, segment_count = item_count + len(own_items), segment_count + len(own_segments)
        return cls(
            works,
            np.concatenate(items).astype(np.int32),
            np.concatenate(segments).astype(np.int32),
            np.concatenate(seen).astype(np.int32),
        )
